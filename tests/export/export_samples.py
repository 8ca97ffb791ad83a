"""Problems and configs that the export tests share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import kgen.ops
from kgen.codegen.library import namespace_ptx
from kgen.codegen.source import Integer, Launch, Param, Pointer, Source, TensorMap
from kgen.dsl.choice import choice
from kgen.dsl.expr import cast, where
from kgen.dsl.family import family_of
from kgen.dsl.functions import amax, exp, gelu, mean, sum
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, ceil_div, dims
from kgen.dsl.target import Target, sm
from kgen.dsl.types import DTYPES, DType, bf16, dtype_var, f16, f32
from kgen.gpu.target import resolve
from kgen.ops.elementwise import Elementwise

M, N, K = dims("M N K")
T = dtype_var("T", f16, bf16, f32)
TARGET = resolve("sm_90a")
H200 = resolve("H200")


@Operator
def bias_gelu(x: Tensor[T, ..., N], b: Tensor[T, N], alpha: float = 1.0) -> Tensor[T, ..., N]:
    """Two inputs that broadcast, and a scalar."""
    return gelu(x * alpha + b)


@Operator
def split_sign(x: Tensor[f16, ...]) -> tuple[Tensor[f16, ...], Tensor[f32, ...]]:
    """Two outputs of different dtypes."""
    return where(x > 0, x, 0.0), where(x > 0, 0.0, cast(x * 3, f16))


@Operator
def scaled_product(a: Tensor[f16, ..., M, K], b: Tensor[f16, N, K], bias: Tensor[f16, N]) -> Tensor[f16, ..., M, N]:
    """A contraction with a transposed operand and an epilogue."""
    return gelu(a @ b.T + bias)


@Operator
def softmax_mean(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    """Row reductions: no family serves it yet, the reference does."""
    shifted = exp(x - amax(x))
    return shifted / sum(shifted) + mean(x)


@Operator
def shifted(x: Tensor[f32, M, N], b: Tensor[f32, N]) -> Tensor[f32, M, N]:
    """What `TmaShift` computes."""
    return x + b


SHIFTED = """\
extern "C" __global__ void __launch_bounds__(128) shifted(const __grid_constant__ ptx::TensorMap map_x, const float* b,
                                                          const __grid_constant__ ptx::TensorMap map_out, int n1@more) {
  extern __shared__ __align__(1024) unsigned char shared[];
  float* const tile = reinterpret_cast<float*>(shared);
  const unsigned start = ptx::smem_address(shared), barrier = start + 4096;
  const int at[] = {static_cast<int>(blockIdx.x) * 32, static_cast<int>(blockIdx.y) * 32};
  if (threadIdx.x == 0) {
@first
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect(barrier, 4096);
    ptx::tma_load(start, map_x, barrier, at);
  }
  ptx::mbarrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < 1024; i += 128) {
    const int column = at[0] + i % 32;
    if (column < n1) tile[i] += b[column];
  }
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::tma_store(map_out, start, at);
    ptx::tma_store_commit();
    ptx::tma_store_wait<0>();
  }
}
"""


class TmaShift(Schedule):
    """Boxes of 32 x 32 to shared memory and back by the tensor memory accelerator. No rule says what that asks for."""

    target = sm(90, "a")
    cooperative = choice(False, True)
    cluster = choice(1, 2)
    scratch = choice(False, True)  # shows a workspace too
    symbols = staticmethod(Elementwise.symbols)

    def source(self, problem: Problem) -> Source:
        sizes, box = (Dim("n1"), Dim("n0")), (32, 32)
        params: tuple[Param, ...] = (
            TensorMap("map_x", f32, "x", "in", sizes, (Dim("x_s0"),), box),
            Pointer("b", f32, "b", "in"),
            TensorMap("map_out", f32, "out", "out", sizes, (Dim("out_s0"),), box),
            Integer("n1", Dim("n1")),
        )
        body = SHIFTED.replace("@more", "").replace("@first\n", "")
        if self.scratch:
            count = Dim("n0") * 32
            params += (
                Pointer("partials", f32, "", "scratch", count),
                TensorMap("map_partials", f32, "partials", "in", (count,), (), (32,)),
            )
            more = ", float* partials, const __grid_constant__ ptx::TensorMap map_partials"
            body = SHIFTED.replace("@more", more).replace(
                "@first", "    partials[0] = 0.0f;\n    ptx::tma_prefetch(map_partials);"
            )
        grid = (ceil_div(Dim("n1"), 32 * self.cluster) * self.cluster, ceil_div(Dim("n0"), 32), 1)
        launch = Launch(grid, (128, 1, 1), 4096 + 16, (self.cluster, 1, 1), self.cooperative)
        return Source("", (), namespace_ptx(body), body, "shifted", params, launch, self.target)


def tma_shift(**changes: Any) -> TmaShift:
    """The plain config, with some fields changed."""
    return TmaShift(**{"cooperative": False, "cluster": 1, "scratch": False, **changes})


def problem(operator: Operator | str, dtypes: Mapping[str, DType], sizes: Any, layouts: Any = None) -> Problem:
    found = kgen.ops.operator(operator) if isinstance(operator, str) else operator
    return Problem.dense(found.graph(dtypes), sizes, layouts)


def elementwise(of: Problem, **changes: Any) -> Schedule:
    """The default config, with some fields changed."""
    family = family_of(of.graph)
    config = family.schedules[0].default(family.normalise(of), TARGET)
    return config.replace(**changes) if changes else config


def default(of: Problem, schedule: str, target: Target = TARGET, **changes: Any) -> Schedule:
    """The default config of a schedule by name, with some fields changed."""
    family = family_of(of.graph)
    kind = next(s for s in family.schedules if s.__name__ == schedule)
    config = kind.default(family.normalise(of), target)
    return config.replace(**changes) if changes else config


@dataclass(frozen=True)
class Exported:
    """A shipped operator to export: the dtype of its first operand, sizes, layouts, changes to its default config."""

    name: str
    dtype: str
    sizes: dict[str, Any]
    layouts: dict[str, str] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = [str(self.sizes[k]).strip("(,)").replace(", ", "x") for k in self.sizes]
        return "-".join([self.name, self.dtype, *sizes, *self.layouts, *self.changes])

    def made(self, target: Target) -> tuple[Problem, Schedule]:
        """Its problem, and the config for a target."""
        operator = kgen.ops.operator(self.name)
        first = next(iter(operator.tensors))
        found = problem(operator, {first: DTYPES[self.dtype]}, self.sizes, self.layouts)
        family = family_of(found.graph)
        normal = family.normalise(found)
        kind = next(s for s in family.schedules if s.applies(normal))
        return found, kind.default(normal, target).replace(**self.changes)


#: Built and run on a GPU by its tests; here, only what their checks say is looked at.
EXPORTED = (
    Exported("add", "f16", {"...": (1000, 1000)}),
    Exported("div", "f32", {"...": (4097,)}),
    Exported("gelu", "bf16", {"...": (33, 4096)}, {}, {"blocks_per_sm": 2}),
    Exported("bias_gelu", "f16", {"...": (33,), "N": 4096}, {}, {"blocks_per_sm": 4}),
    Exported("hgemm", "f16", {"M": 1024, "N": 1024, "K": 1024}),
    Exported("hgemm", "bf16", {"M": 512, "N": 768, "K": 640}, {"a": "col", "b": "col"}),
    Exported("hgemm", "f16", {"M": 128, "N": 128, "K": 16384}, {}, {"splits": 8}),
    Exported("hgemm", "f16", {"M": 131, "N": 197, "K": 83}),
    Exported("sgemm", "f32", {"M": 512, "N": 512, "K": 512}),
    Exported("igemm", "i8", {"M": 512, "N": 512, "K": 512}),
    Exported("linear_gelu", "bf16", {"...": (4,), "M": 256, "N": 512, "K": 1024}),
    Exported("fp8gemm_blockwise", "e4m3", {"M": 256, "N": 512, "K": 1024}),
    Exported("fp8gemm_vectorwise", "e4m3", {"...": (2,), "M": 256, "N": 512, "K": 1024}),
    Exported("grouped_hgemm", "f16", {"M": 1024, "N": 512, "K": 256, "G": 16}),
    Exported("grouped_hgemm", "bf16", {"M": 515, "N": 264, "K": 328, "G": 40}, {"b": "col"}),
    Exported("cumsum", "f32", {"...": (3,), "N": 300000}),
    Exported("cumsum", "f16", {"...": (300000,), "N": 3}),
    Exported("logcumsumexp", "f32", {"...": (30000,), "N": 31}),
    Exported("transpose", "f16", {"...": (2,), "M": 100003, "N": 5}),
    Exported("attention_causal_fp8_lse", "e4m3", {"...": (2,), "G": 2, "M": 77, "N": 208, "D": 80, "E": 64}),
)
