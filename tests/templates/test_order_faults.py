"""Shipped kernels with one synchronisation between blocks left out, or an atomic made a plain update, are refused."""

# ruff: noqa: E501 (tables and CUDA)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from cases import TARGET
from launches import dense

from kgen import emulator
from kgen.dsl.errors import EmulatorError
from kgen.dsl.family import schedules
from kgen.dsl.types import DType, f16, f32, i32
from kgen.emulator import Options
from kgen.numerics.operands import make_operands, scalar_values
from kgen.ops import operator
from kgen.tuner.execute import Runner

_RACE = "race on global memory"


@dataclass(frozen=True)
class Kernel:
    """A config, the default's with some fields changed, and changes to its text: old parts (by |), what they become, and a
    regular expression of what is said then."""

    operator: str
    dtype: DType
    sizes: Mapping[str, Any]
    schedule: str
    fields: Mapping[str, Any]
    faults: Mapping[str, tuple[str, str, str]]
    sm_count: int = 2


_SPLIT = {
    "no-fence": ("  __threadfence();\n  __syncthreads();\n", "  __syncthreads();\n", _RACE),
    "no-barrier": ("  __threadfence();\n  __syncthreads();\n", "  __threadfence();\n", "race"),
}
KERNELS = {
    "mma-splits": Kernel("hgemm", f16, {"M": 32, "N": 64, "K": 256}, "MmaGemm", {"splits": 2}, _SPLIT),
    "gemv-splits": Kernel("hgemv", f16, {"M": 64, "K": 2048}, "Gemv", {"splits": 4}, _SPLIT),
    "reduce": Kernel("reduce_sum", f32, {"...": (100000,)}, "Reduce", {}, {
        "no-fence": ("  __threadfence();\n  __syncthreads();\n", "  __syncthreads();\n", _RACE),
        "no-acquire-fence": ("*counter = 0;\n  __threadfence();", "*counter = 0;", _RACE),
    }),
    "wgmma-stream": Kernel("hgemm", f16, {"M": 256, "N": 64, "K": 512}, "WgmmaGemm", {"work": "stream_k", "splits": 2, "BM": 128, "BN": 64, "consumers": 2, "pingpong": False, "cluster": "1x1", "stages": 3, "BK": 64, "store": "direct", "epilogue_stages": 1, "swap_ab": False}, {
        "raised-too-early": ("    warpgroup_sync<Consumers>(consumer);\n    if (thread == 0) ptx::store_release(", "    if (thread == 0) ptx::store_release(", _RACE),
        "plain-flag": ("ptx::store_release(counters + place, 1)", "counters[place] = 1", _RACE),
        "cleared-too-early": ("    warpgroup_sync<Consumers>(consumer);\n    if (thread == 0) counters[place] = 0;", "    if (thread == 0) counters[place] = 0;", _RACE),
    }, sm_count=3),
    "wgmma-pdl": Kernel("hgemm", f16, {"M": 128, "N": 128, "K": 128}, "WgmmaGemm", {"pdl": True}, {
        "no-wait": ("ptx::griddepcontrol_wait();", "", "before griddepcontrol_wait"),
    }),
    "wgmma-packed": Kernel("hgemm", f16, {"M": 64, "N": 64, "K": 65}, "WgmmaGemm", {}, {
        "no-proxy-fence": ("ptx::fence_proxy_async_global();|  ptx::fence_proxy_async();\n  __syncthreads();", "  __syncthreads();", "no fence_proxy_async lies in between"),
        "no-barrier": ("    ptx::wait_for(counters, gridDim.x);\n", "", _RACE),
    }),
    "scatter-add": Kernel("index_add", f32, {"V": 40, "N": 60, "C": 64}, "ScatterAdd", {}, {
        "plain": ("atomicAdd(p + e, static_cast<Total>(sums[e]))", "p[e] += sums[e]", "race"),
        "no-barrier": ("    grid_wait(grid_barrier, 1);\n", "", _RACE),
    }),
    "scatter-bins": Kernel("histogram", i32, {"...": (5000,), "BINS": 16}, "ScatterBins", {}, {
        "plain": ("atomicAdd(out + ", "add_plainly(out + ", _RACE),
    }),
    "nms": Kernel("nms_padded", f32, {"N": 400}, "Nms", {"chunk": 128}, {
        "plain-and": ("atomicAnd(alive + w, ~gone)", "alive[w] &= ~gone", _RACE),
        "no-barrier": ("      if (lane == 0 && gone != 0) atomicAnd(alive + w, ~gone);\n    }\n    grid_sync();", "      if (lane == 0 && gone != 0) atomicAnd(alive + w, ~gone);\n    }\n    __syncthreads();", _RACE),
    }, sm_count=3),
}  # fmt: skip


def run(kernel: Kernel, fault: str | None) -> None:
    known = operator(kernel.operator)
    graph = known.graph({next(iter(known.tensors)): kernel.dtype})
    problem = dense(graph, kernel.sizes)
    target = replace(TARGET, sm_count=kernel.sm_count)
    config = schedules()[kernel.schedule].default(problem, target).replace(**kernel.fields)
    source = config.source(problem)
    if fault is not None:
        old, new, _ = kernel.faults[fault]
        body = source.body
        for part in old.split("|"):
            assert part in body, part
            body = body.replace(part, new if "syncthreads" in part or "|" not in old else "")
        if "add_plainly" in body:
            body = "template <class T> __device__ void add_plainly(T* p, T v) { *p += v; }\n" + body
        source = replace(source, body=body)
    symbols = {**config.symbols(problem), "SM_COUNT": kernel.sm_count}
    runner = Runner(emulator.compile(source), source, symbols, Options(threads=1, timeout=30))
    runner.run(make_operands(problem, "integers"), scalar_values(graph, "integers"))


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_is_right(name: str) -> None:
    run(KERNELS[name], None)


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, kernel in KERNELS.items() for fault in kernel.faults]
)
def test_the_fault_is_found(name: str, fault: str) -> None:
    with pytest.raises(EmulatorError, match=KERNELS[name].faults[fault][2]):
        run(KERNELS[name], fault)
