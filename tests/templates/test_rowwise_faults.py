"""What hand-written row-wise kernels get wrong: extreme values, empty and single rows, large means, broadcast masks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import TARGET
from launches import launch, problem_of, runner

from kgen.dsl import functions as F
from kgen.dsl.expr import where
from kgen.dsl.family import family_of
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Operator, Tensor, TensorSpec
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, f16, f32
from kgen.gpu.target import resolve
from kgen.numerics.dtypes import round_to
from kgen.numerics.reference import evaluate
from kgen.ops.rowwise import RowwiseCluster
from kgen.ops.rowwise.plan import matches
from kgen.ops.rowwise.rows import OPERATORS
from kgen.ops.rowwise.rowwise import Rowwise
from kgen.runtime.dispatch import default

M, N, K = dims("M N K")
OPS = {o.name: o for o in OPERATORS}
REGIMES: dict[str, dict[str, Any]] = {
    "lanes": {"keep": "registers", "row_threads": 8, "threads": 64, "cluster": 1, "unroll": 1},
    "block": {"keep": "registers", "row_threads": 64, "threads": 64, "cluster": 1, "unroll": 1},
    "shared": {"keep": "shared", "row_threads": 64, "threads": 64, "cluster": 1, "unroll": 1, "pack": 4},
    "cluster": {"keep": "registers", "row_threads": 32, "threads": 32, "cluster": 4, "unroll": 1},
    "streaming": {"keep": "none", "row_threads": 32, "threads": 32, "cluster": 1, "unroll": 2},
    "ring": {
        "cluster": 2,
        "threads": 128,
        "pack": 1,
        "unroll": 2,
        "slots": 3,
        "blocks_per_sm": 1,
        "columns": "late",
        "load": "evict_last",
        "store": "default",
    },
}


def both(name: str, inputs: dict[str, torch.Tensor], fields: dict[str, Any], **scalars: float) -> Any:
    """What the kernel gives, and the exact result: of the first output."""
    first = OPS[name].graphs[0].inputs[0].name
    kinds = {torch.float16: f16, torch.bfloat16: bf16, torch.float32: f32}
    graph = OPS[name].graph({first: kinds[inputs[first].dtype]})
    given = {s.name: s.default for s in graph.scalars} | scalars
    exact = evaluate(graph, inputs, given)
    kept = inputs[first].dtype
    outputs = [
        torch.empty(_declared(e, spec), dtype=kept if e.is_floating_point() else e.dtype)
        for e, spec in zip(exact, graph.outputs)
    ]
    tensors = [*inputs.values(), *outputs]
    if "slots" in fields:
        config = RowwiseCluster(**{name: value for name, value in fields.items() if name in RowwiseCluster.fields})
        problem = problem_of(graph, tensors)
        runner(config, problem).run({o.name: t for o, t in zip((*graph.inputs, *graph.outputs), tensors)}, given)
    else:
        launch(graph, tensors, Rowwise, fields, given)
    return outputs[0], exact[0].reshape(outputs[0].shape)


def _declared(value: torch.Tensor, spec: TensorSpec) -> torch.Size:
    """The shape of an output that may lack the reduced axis."""
    return value.shape if spec.shape.dims[-1:] == (N,) or value.shape[-1:] != (1,) else value.shape[:-1]


@pytest.mark.parametrize("algorithm", ["two_pass", "online"])
@pytest.mark.parametrize("regime", REGIMES)
def test_softmax_of_extreme_rows(regime: str, algorithm: str) -> None:
    n = 96
    x = torch.linspace(-4, 4, n).repeat(9, 1)
    x[0] = -math.inf  # nothing is left: NaN, as in torch
    x[1, 5] = math.inf
    x[2, 7] = math.nan
    x[3, : n // 2] = -math.inf  # whole threads without a finite value
    x[4] = 3e38
    x[5] *= 1e-42
    x[6, 1:] = -math.inf
    x[7] = 1e4 + x[7]
    got, want = both("softmax", {"x": x}, {**REGIMES[regime], "algorithm": algorithm})
    assert torch.equal(got.isnan(), want.isnan())
    assert want[:3].isnan().all()
    assert torch.allclose(got.double()[3:], want[3:], rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("regime", REGIMES)
def test_variance_beside_a_large_mean(regime: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 96) + 1e4
    w, b = torch.ones(96), torch.zeros(96)
    got, want = both("layer_norm", {"x": x, "weight": w, "bias": b}, REGIMES[regime])
    # The mean itself is rounded to 1e4 * 2^-24.
    assert torch.allclose(got.double(), want, atol=3e-3)


@pytest.mark.parametrize("regime", REGIMES)
def test_nan_and_infinity_in_sums_and_maxima(regime: str) -> None:
    x = torch.arange(96.0).repeat(4, 1)
    x[1, 3], x[2, 90], x[3, 95] = math.nan, math.inf, -math.inf
    for name in ("row_max", "row_sum", "row_mean", "row_argmax"):
        got, want = both(name, {"x": x}, REGIMES[regime])
        assert torch.equal(got.double().nan_to_num(7.0), want.double().nan_to_num(7.0)), name


def test_argmax_is_the_first_of_equals() -> None:
    x = torch.zeros(4, 100)
    x[1, 40] = x[1, 70] = 2.0
    x[2, 60] = x[2, 20] = math.nan
    x[3] = -math.inf
    for regime in REGIMES.values():
        got, _ = both("row_argmax", {"x": x}, regime)
        assert got.tolist() == [0, 40, 20, 0]


@pytest.mark.parametrize("keep", ["registers", "none"])
def test_argmax_where_elements_beside_the_vectors_come_last(keep: str) -> None:
    x = torch.zeros(7, 101)
    for row, places in enumerate([(0, 50), (50, 100), (99, 100), (1, 2), (100,), (3, 64, 97)]):
        x[row, list(places)] = 2.0 if row else math.nan
    x[6] = -math.inf
    shifted = {"keep": keep, "row_threads": 8, "threads": 32, "pack": 4, "shift": True, "load": "default"}
    got, _ = both("row_argmax", {"x": x}, {**shifted, "unroll": 2 if keep == "none" else 1, "columns": "late"})
    assert got.tolist() == [0, 50, 99, 1, 100, 3, 0]


@pytest.mark.parametrize("regime", REGIMES)
def test_a_class_that_does_not_exist_has_no_logit(regime: str) -> None:
    x = torch.arange(96.0).repeat(5, 1) / 64
    target = torch.tensor([0, 95, 96, -1, 2**32])[:, None]
    got, want = both("cross_entropy", {"x": x, "target": target}, REGIMES[regime])
    assert torch.allclose(got.double(), want, atol=1e-5)
    assert torch.allclose(got[2:], x.logsumexp(-1)[2:])


def test_quotients_by_tiny_and_huge_divisors() -> None:
    @Operator
    def share(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
        return x / F.sum(x)

    scale = torch.tensor([[1e-44], [1e-40], [1e-30], [1.0], [1e30], [3e36]])
    x = torch.tensor([1.0, 2.0, 5.0, 8.0, 4.0, 0.0, 9.0, 3.0]) * scale
    x = torch.cat([x, torch.zeros(1, 8)])
    out = torch.empty_like(x)
    graph = share.graphs[0]
    launch(graph, [x, out], Rowwise)
    want = evaluate(graph, {"x": x}, {})[0]
    assert torch.allclose(out.double(), want, rtol=3e-7, equal_nan=True)
    assert out[6].isnan().all()


def test_a_mask_for_each_batch_broadcasts_over_heads_and_rows() -> None:
    x = torch.randn(2, 3, 5, 24).half()
    mask = torch.rand(2, 1, 1, 24) < 0.7
    x_turned = torch.randn(2, 5, 3, 24).half().transpose(1, 2)
    for given in (x, x_turned):
        got, want = both("scale_mask_softmax", {"x": given, "mask": mask}, {}, scale=0.5)
        assert torch.allclose(got.double(), want, atol=1e-3)


def test_causal_mask_by_positions() -> None:
    @Operator
    def causal(x: Tensor[f32, ..., M, N]) -> Tensor[f32, ..., M, N]:
        y = where(arange(N) <= arange(M, 1), x, -math.inf)
        e = F.exp(y - F.amax(y))
        return e / F.sum(e)

    x = torch.randn(2, 3, 7, 7)
    out = torch.empty_like(x)
    launch(causal.graphs[0], [x, out], Rowwise)
    want = torch.softmax(x.masked_fill(~torch.ones(7, 7).tril().bool(), -math.inf), -1)
    assert torch.allclose(out, want, atol=1e-6)


@pytest.mark.parametrize("n", [1, 5, 8, 30])
def test_dropout_does_not_depend_on_the_config(n: int) -> None:
    graph = OPS["layer_norm_residual_dropout_gelu"].graph({"x": f32})
    x, r = torch.randn(6, n), torch.randn(6, n)
    w, b = torch.randn(n), torch.randn(n)
    given = {"eps": 1e-5, "p": 0.5, "seed": 1 << 40, "offset": 9}
    want = evaluate(graph, {"x": x, "residual": r, "weight": w, "bias": b}, given)[0]
    plain = {"keep": "registers", "cluster": 1, "unroll": 1, "pack": 1, "shift": False, "threads": 64}
    shifted = {"pack": 4, "shift": True} if n % 4 else {"pack": 4}
    for change in ({"row_threads": 1}, {"row_threads": 32}, {"row_threads": 32, **shifted}):
        out = torch.empty_like(x)
        launch(graph, [x, r, w, b, out], Rowwise, {**plain, **change}, given)
        assert torch.allclose(out.double(), want, atol=1e-4)


def test_cross_entropy_and_what_is_ignored() -> None:
    x = torch.randn(7, 33)
    target = torch.tensor([0, 32, 5, -100, 9, -100, 1])
    got, want = both("cross_entropy", {"x": x, "target": target[:, None]}, {})
    assert torch.allclose(got.double(), want, atol=1e-5)
    reference = torch.nn.functional.cross_entropy(x, target, reduction="none")
    assert torch.allclose(got, reference, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["softmax_backward", "log_softmax_backward", "layer_norm_backward", "rms_norm_backward"]
)
def test_gradients_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    x, dy, w = torch.randn(5, 40, requires_grad=True), torch.randn(5, 40), torch.randn(40)
    forward = {
        "softmax_backward": lambda: torch.softmax(x, -1),
        "log_softmax_backward": lambda: torch.log_softmax(x, -1),
        "layer_norm_backward": lambda: torch.nn.functional.layer_norm(x, (40,), w, eps=1e-5),
        "rms_norm_backward": lambda: torch.nn.functional.rms_norm(x, (40,), w, eps=1e-6),
    }[name]
    y = forward()
    y.backward(dy)
    saved = x.detach()
    mean = saved.mean(-1, keepdim=True)
    inputs = {"dy": dy, "y": y.detach()}
    if name == "layer_norm_backward":
        rstd = (saved.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
        inputs = {"dy": dy, "x": saved, "weight": w, "mean": mean, "rstd": rstd}
    elif name == "rms_norm_backward":
        inputs = {"dy": dy, "x": saved, "weight": w, "rstd": (saved.square().mean(-1, keepdim=True) + 1e-6).rsqrt()}
    got, _ = both(name, inputs, {})
    assert torch.allclose(got, x.grad, atol=1e-5)


@pytest.mark.parametrize("dtype", [f16, bf16, f32])
def test_default_is_valid_at_every_length(dtype: Any) -> None:
    for name in ("softmax", "layer_norm", "row_sum", "layer_norm_backward"):
        graph = OPS[name].graph({OPS[name].graphs[0].inputs[0].name: dtype})
        for n in (0, 1, 2, 3, 7, 64, 127, 1000, 4096, 50257, 65536, 262144, 300007, 1 << 20, 1 << 22):
            for rows in (1, 5, 100000):
                problem = family_of(graph).normalise(Problem.dense(graph, {"...": (rows,), "N": n}))
                Rowwise.default(problem, TARGET).check(problem, TARGET)


def test_long_rows_go_to_clusters_that_loop() -> None:
    target = resolve("H200")
    for name in ("softmax", "layer_norm", "rms_norm", "layer_norm_backward"):
        graph = OPS[name].graph({OPS[name].graphs[0].inputs[0].name: f32})
        for n, schedule in ((4096, Rowwise), (262144, RowwiseCluster), (262143, Rowwise)):
            config = default(Problem.dense(graph, {"...": (512,), "N": n}), target).config
            assert isinstance(config, schedule), (name, n)


def test_rows_of_which_sums_alone_are_asked_for_pass_by() -> None:
    target = resolve("H200")
    for name, rows, n, keep in (
        ("row_argmax", 4096, 4096, "registers"),
        ("row_argmax", 4096, 32768, "none"),
        ("logsumexp", 1024, 262144, "none"),
        ("logsumexp", 64, 65536, "registers"),
        ("softmax", 4096, 16384, "registers"),
    ):
        problem = Problem.dense(OPS[name].graph({"x": f32}), {"...": (rows,), "N": n})
        config = default(problem, target).config
        assert isinstance(config, Rowwise), (name, n)
        assert config.keep == keep, (name, n)


@pytest.mark.parametrize(
    ("n", "dtype", "row_threads"),
    [(768, f16, 32), (1024, f16, 64), (1000, f16, 64), (5120, f16, 128), (768, f32, 64)],
)
def test_threads_of_a_row_have_the_same_share_of_it(n: int, dtype: Any, row_threads: int) -> None:
    problem = Problem.dense(OPS["layer_norm"].graph({"x": dtype}), {"...": (4096,), "N": n})
    assert default(problem, resolve("H200")).config.row_threads == row_threads


def test_fewer_rows_than_clusters_and_more() -> None:
    for rows in (1, 3, 20):
        x = torch.randn(rows, 300)
        got, want = both("layer_norm", {"x": x, "weight": torch.randn(300), "bias": torch.randn(300)}, REGIMES["ring"])
        assert torch.allclose(got.double(), want, atol=1e-5)


def test_half_sums_do_not_saturate() -> None:
    x = torch.ones(2, 70000, dtype=torch.float16) / 2
    got, _ = both("row_sum", {"x": x}, {})
    assert got.tolist() == [35008.0, 35008.0]  # 35000 in f16


def test_rows_that_share_memory_and_start_anywhere() -> None:
    storage = round_to(torch.randn(4000), f16)
    x = torch.as_strided(storage, (9, 40), (3, 1), 5)  # overlapping rows, odd addresses
    got, want = both("softmax", {"x": x}, {})
    assert torch.allclose(got.double(), want, atol=1e-3)


def test_graphs_of_other_families() -> None:
    @Operator
    def over_all(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
        return x - F.amax(x, axis=None)

    @Operator
    def two_lengths(x: Tensor[f32, M, N], y: Tensor[f32, M, K]) -> Tensor[f32, M, K]:
        return y * F.sum(x)

    def no_row(x: Tensor[f32, M, N], w: Tensor[f32, N]) -> tuple[Tensor[f32, M, N], Tensor[f32, 1]]:
        return x + w, F.sum(w)

    assert not any(matches(o.graphs[0]) for o in (over_all, two_lengths, Operator(no_row)))
    assert all(matches(g) for o in OPERATORS for g in o.graphs)


def test_a_single_row_is_kept_as_many_are() -> None:
    graph = OPS["softmax"].graph({"x": f32})
    x = torch.randn(1, 512)
    problem = problem_of(graph, [x, torch.empty_like(x)])
    assert Rowwise.default(problem, TARGET).keep != "none"
