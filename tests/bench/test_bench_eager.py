"""Eager torch: what its users write as one call is one call, for shipped operators of every family and for what users write."""

from __future__ import annotations

from typing import Any

import bench_operators as ops
import pytest
import torch
from bench_operators import M, N

from kgen.bench import eager
from kgen.bench.check import Expectation, Verdict, check
from kgen.bench.fusions import fusions
from kgen.bench.opponents import Absent, Launch, Operands, load
from kgen.dsl import functions as F
from kgen.dsl.expr import cast, where
from kgen.dsl.indexing import arange, scatter_add, size, take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import DType, f16, f32, i8, i32, i64
from kgen.numerics.operands import make_operands, scalar_values
from kgen.ops import operator

V, C, K, W, OH, OW = dims("V C K W OH OW")

ROWS = {"...": (3, 5), "N": 32}
IMAGES = {"...": (2, 3), "H": 7, "W": 8, "OH": 10, "OW": 21}
#: Operator, its sizes, and the one call of torch that it is, but for casts and shapes.
FUSED: list[tuple[str, dict[str, Any], str]] = [
    ("softmax", ROWS, "softmax"),
    ("log_softmax", ROWS, "log_softmax"),
    ("softmax_backward", ROWS, "_softmax_backward_data"),
    ("log_softmax_backward", ROWS, "_log_softmax_backward_data"),
    ("logsumexp", ROWS, "logsumexp"),
    ("layer_norm", ROWS, "layer_norm"),
    ("layer_norm_forward", ROWS, "native_layer_norm"),
    ("layer_norm_backward", ROWS, "native_layer_norm_backward"),
    ("rms_norm", ROWS, "rms_norm"),
    ("cross_entropy", {"M": 9, "N": 32}, "cross_entropy"),
    ("reduce_sum", {"...": (65,)}, "sum"),
    ("norm", {"...": (65,)}, "linalg_vector_norm"),
    ("dot", {"...": (65,)}, "dot"),
    ("reduce_argmax", {"...": (65,)}, "argmax"),
    ("row_argmax", ROWS, "argmax"),
    ("column_sum", {"...": (2,), "M": 9, "N": 5}, "sum"),
    ("transpose", {"M": 9, "N": 5}, "transpose"),
    ("embedding", {"...": (3, 5), "V": 11, "C": 8}, "embedding"),
    ("embedding_backward", {"N": 20, "V": 11, "C": 8}, "embedding_dense_backward"),
    ("upsample_nearest", IMAGES, "interpolate"),
    ("upsample_nearest_backward", IMAGES, "upsample_nearest2d_backward"),
    ("concat_sequence", {"B": 2, "H": 3, "S1": 4, "S2": 5, "S": 9, "D": 8}, "cat"),
    ("merge_heads", {"B": 2, "S": 4, "H": 3, "D": 8, "P": 3}, "cat"),
    ("histogram", {"...": (65,), "BINS": 7}, "bincount"),
    ("index_add", {"V": 11, "N": 20, "C": 8}, "index_add"),
    ("index_add_last", {"M": 4, "V": 11, "N": 20}, "index_add"),
]
_SHAPES = {
    "to",
    "squeeze",
    "unsqueeze",
    "reshape",
    "long",
    "getitem",
    "getattr",
    "unflatten",
    "flatten",
    "expand",
    "type_as",
}


def of_f32(name: str, sizes: dict[str, Any]) -> Problem:
    """The problem of a shipped operator in f32, or whatever its first operand is else."""
    known = operator(name)
    first = next(iter(known.tensors))
    chosen = [g for g in known.graphs if g.inputs[0].dtype is f32] or known.graphs
    return Problem.dense(known.graph({first: chosen[0].inputs[0].dtype}), sizes)


def calls(problem: Problem, compiled: bool = False) -> list[str]:
    """The names of the torch calls, in order, but for those that change dtype or shape alone."""
    made = eager.function(problem, scalar_values(problem.graph), compiled).__self__.graph.nodes  # type: ignore[attr-defined]
    names = [str(getattr(n.target, "__name__", n.target)).split(".")[0] for n in made if n.op.startswith("call")]
    return [name for name in names if name not in _SHAPES]


def judged(problem: Problem, name: str = "torch", own_randomness: bool = False) -> Verdict:
    scalars = scalar_values(problem.graph)
    sets = [make_operands(problem, "normal", seed, "cpu", guard=0) for seed in range(2)]
    launch = load(name).prepare(problem, sets, scalars)  # type: ignore[union-attr]
    return check(problem, launch, sets, [Expectation.of(problem, s, scalars) for s in sets], own_randomness)


@pytest.mark.parametrize(("name", "sizes", "call"), FUSED, ids=[name for name, _, _ in FUSED])
def test_shipped_operators_are_one_call_and_right(name: str, sizes: dict[str, Any], call: str) -> None:
    problem = of_f32(name, sizes)
    assert calls(problem) == [call]
    assert judged(problem).fault == ""


@pytest.mark.parametrize(
    "name", ["rope", "rope_interleaved", "rope_computed", "batch_norm_stats", "add_rms_norm", "histogram"]
)
def test_other_shipped_operators_are_right(name: str) -> None:
    sizes = {"...": (2,), "S": 5, "H": 3, "D": 8, "B": 2, "C": 4, "N": 6, "BINS": 9}
    graph = operator(name).graphs[0]
    leading = any(spec.shape.leading for spec in (*graph.inputs, *graph.outputs))
    problem = of_f32(name, {d: n for d, n in sizes.items() if d in graph.dims or (d == "..." and leading)})
    assert judged(problem).fault == ""


def test_rotary_embeddings_concatenate_halves_and_stack_pairs() -> None:
    sizes = {"S": 5, "H": 3, "D": 8}
    assert calls(of_f32("rope", sizes)) == ["mul", "chunk", "neg", "cat", "mul", "add"]
    assert "stack" in calls(of_f32("rope_interleaved", sizes))


def test_a_copy_of_a_view_is_a_copy() -> None:
    problem = of_f32("contiguous", {"...": (4, 5)})
    sets = [make_operands(problem, "normal", 0, "cpu", guard=0)]
    load("torch").prepare(problem, sets, {})(0)  # type: ignore[union-attr]
    assert sets[0]["out"].data_ptr() != sets[0]["x"].data_ptr()


def masked(x: Tensor[f16, M, N], bias: Tensor[f16, N], w: Tensor[f16, N], b: Tensor[f16, N]) -> Tensor[f16, M, N]:
    y = where(x > 0, x * 0.5, -float("inf"))
    e = F.exp(y - F.amax(y))
    centred = bias + x - F.mean(bias + x)  # bias + x twice: two nodes of one meaning
    return e / F.sum(e) + centred * F.rsqrt(F.mean(centred * centred) + 1e-3) * w + b


def nearly(x: Tensor[f32, M, N], y: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    e = F.exp(x - F.amax(y))  # not softmax
    return e / F.sum(e)


def scaled_by_all(x: Tensor[f32, M, N], w: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    return x * F.rsqrt(F.mean(x * x) + 1e-6) * w  # w is no row: torch's rms_norm does not take it


def bytes_summed(x: Tensor[i8, M, N]) -> Tensor[i32, M]:
    return F.sum(x)


def looked_up(x: Tensor[f32, M, N, C], ids: Tensor[i32, K, W]) -> Tensor[f32, M, K, W, C]:
    return take(x, ids, axis=1)


def counted(ids: Tensor[i64, M], x: Tensor[f32, M]) -> Tensor[f32, V]:
    return scatter_add(V, ids, x * 2.0)


def positions(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    return x * cast(arange(M, 1) % 3, f32) + cast(size(N) // 2, f32) + F.log2(cast(size(N), f32))


def scaled_images(x: Tensor[f32, M, K, W]) -> Tensor[f32, M, OH, OW]:
    rows = take(x, arange(OH) * size(K) // size(OH), axis=-2)  # by integers: not always torch's nearest
    return take(rows, arange(OW) * size(W) // size(OW), axis=-1)


USERS: list[tuple[Any, dict[str, Any], set[str], set[str]]] = [
    (masked, {"M": 5, "N": 32}, {"softmax", "layer_norm"}, {"exp", "mean"}),
    (nearly, {"M": 5, "N": 32}, {"exp"}, {"softmax"}),
    (scaled_by_all, {"M": 5, "N": 32}, {"rms_norm", "mul"}, {"rsqrt"}),
    (bytes_summed, {"M": 5, "N": 32}, {"sum"}, {"exp"}),
    (looked_up, {"M": 3, "N": 5, "C": 4, "K": 2, "W": 3}, {"index_select"}, {"embedding"}),
    (counted, {"M": 20, "V": 6}, {"index_add"}, {"embedding_dense_backward"}),
    (positions, {"M": 5, "N": 6}, {"arange"}, {"log2"}),
    (scaled_images, {"M": 2, "K": 5, "W": 6, "OH": 9, "OW": 4}, {"index_select"}, {"interpolate"}),
]


@pytest.mark.parametrize(("function", "sizes", "there", "absent"), USERS, ids=[u[0].__name__ for u in USERS])
def test_users_operators(function: Any, sizes: dict[str, int], there: set[str], absent: set[str]) -> None:
    problem = Problem.dense(Operator(function).graphs[0], sizes)
    assert there <= set(calls(problem))
    assert not absent & set(calls(problem))
    assert judged(problem).fault == ""


@pytest.mark.parametrize(
    "name", [*(name for name, _, _ in FUSED), "rope", "rope_interleaved_compact", "scale_mask_softmax"]
)
def test_torch_compile_traces_them_whole(name: str) -> None:
    sizes = {n: s for n, s, _ in FUSED}.get(name, {"S": 5, "H": 3, "D": 8, "P": 4})
    problem = of_f32(name, sizes if name != "scale_mask_softmax" and "rope" not in name else
                     {d: {"S": 5, "H": 3, "D": 8, "P": 4, "N": 9}[d] for d in operator(name).graphs[0].dims})  # fmt: skip
    operands = make_operands(problem, "normal", 0, "cpu", guard=0)
    function = eager.function(problem, scalar_values(problem.graph), compiled=True)
    torch._dynamo.reset()
    traced = torch.compile(function, fullgraph=True, dynamic=False, backend="eager")
    inputs = [operands[o.name] for o in problem.inputs]
    for got, want in zip(traced(*inputs), function(*inputs)):
        torch.testing.assert_close(got, want, equal_nan=True)


def test_counts_are_made_without_bincount_for_the_compiler() -> None:
    problem = of_f32("histogram", {"...": (65,), "BINS": 7})
    assert "bincount" in calls(problem)
    assert calls(problem, compiled=True) == ["full", "zeros", "index_add"]


def test_every_fusion_has_a_name_of_its_own_form() -> None:
    assert len({(f.name, len(f.results), len(f.results[0].args)) for f in fusions()}) >= 12
    x = ops.row_sum.graphs[0].results[0]
    assert all(f.match((x,)) is None for f in fusions())


# Random numbers.


def dropped(x: Tensor[f32, M, N], p: float = 0.25, seed: i64 = 3, offset: i64 = 0) -> Tensor[f32, M, N]:
    return F.dropout(x, p, seed, offset)


def test_dropout_is_judged_by_its_distribution() -> None:
    problem = Problem.dense(Operator(dropped).graphs[0], {"M": 64, "N": 512})
    assert eager.is_random(problem.graph)
    assert not eager.is_random(ops.gelu.graphs[0])
    assert calls(problem) == ["dropout"]
    assert judged(problem, own_randomness=True).fault == ""
    assert "elements are wrong" in judged(problem).fault


@pytest.mark.parametrize(("share", "scale"), [(0.5, 1 / 0.75), (0.25, 1.0), (0.0, 1.0)])
def test_another_distribution_is_wrong(share: float, scale: float) -> None:
    problem = Problem.dense(Operator(dropped).graphs[0], {"M": 64, "N": 512})
    sets = [make_operands(problem, "normal", 0, "cpu", guard=0)]
    expected = [Expectation.of(problem, sets[0], scalar_values(problem.graph))]

    def launch(i: int) -> None:
        x = sets[i]["x"]
        sets[i]["out"].copy_(torch.where(torch.rand_like(x) < share, 0.0, x * scale))

    assert "root mean square" in check(problem, launch, sets, expected, own_randomness=True).fault
    sets[0]["out"] = torch.full_like(sets[0]["x"], float("nan"))
    assert "not finite" in check(problem, lambda i: None, sets, expected, own_randomness=True).fault


# Other yardsticks and opponents.


def test_read_reads_the_bytes_of_the_problem() -> None:
    problem = of_f32("reduce_sum", {"...": (1000,)})
    launch = load("read").prepare(problem, [make_operands(problem)] * 2, {})  # type: ignore[union-attr]
    seen: list[int] = []
    plain = torch.sum

    def spy(x: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.append(x.nbytes)
        return plain(x, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "sum", spy)
        launch(1)
    assert seen == [problem.bytes // 4 * 4]
    assert not load("read").computes  # type: ignore[union-attr]


def test_results_in_another_form_are_settled_before_they_are_judged() -> None:
    problem = of_f32("transpose", {"M": 4, "N": 5})
    sets = [make_operands(problem, "normal", 0, "cpu", guard=0)]

    class Sideways:
        settled = 0

        def __call__(self, i: int) -> None:
            self.found = sets[i]["x"].mT

        def settle(self, i: int) -> None:
            self.settled += 1
            sets[i]["out"].copy_(self.found)

    launch: Launch = Sideways()
    expected = [Expectation.of(problem, sets[0], {})]
    assert check(problem, launch, sets, expected).fault == ""
    assert launch.settled == 1  # type: ignore[attr-defined]


def test_torchvision_declines_all_but_nms() -> None:
    opponent = load("torchvision")
    if isinstance(opponent, Absent):
        pytest.skip(opponent.reason)
    assert "no such operator" in (opponent.why_not(ops.square(ops.add)) or "")  # type: ignore[union-attr]
    assert judged(Problem.dense(operator("nms_padded").graphs[0], {"N": 200}), "torchvision").fault == ""


def test_torch_declines_nms_by_its_name() -> None:
    problem = Problem.dense(operator("nms_padded").graphs[0], {"N": 200})
    assert load("torch").why_not(problem) == "no torch call is known for nms"  # type: ignore[union-attr]


def test_targets_of_a_loss_are_classes() -> None:
    problem = of_f32("cross_entropy", {"M": 500, "N": 7})
    made: Operands = make_operands(problem, "normal", 0, "cpu", guard=0)
    assert set(made["target"].unique().tolist()) == set(range(7))
    assert isinstance(problem.operand("target").dtype, DType)
