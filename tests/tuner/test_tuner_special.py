"""Special operands hold what they should, and the gate's rule for their results is strict where torch's is clear."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_tuner_verify import Scripted
from tuner_samples import problem_of

from kgen.dsl import functions as F
from kgen.dsl.expr import cast, where
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, e4m3, e5m2, f16, f32, f64
from kgen.numerics.operands import guards_intact, make_operands, scalar_values, special_seeds
from kgen.numerics.reference import evaluate, evaluate_ranged
from kgen.tuner.verify import Gate, Verdict

K, M, N = dims("K M N")


def largest(x: Tensor[f32, M, N]) -> Tensor[f32, M]:
    return F.amax(x)


def total(x: Tensor[f32, M, N]) -> Tensor[f32, M]:
    return F.sum(x)


def squares(x: Tensor[f32, M, N]) -> Tensor[f32, M]:
    return 1.0 / F.sum(x * x)


def shifted(x: Tensor[f32, M, N], y: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    return (x * 1.5 + y) - x


def scored(x: Tensor[f32, M, N], y: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    return F.sigmoid(x) / y


def dense(function: Any, **sizes: int) -> Problem:
    return Problem.dense(Operator(function).graphs[0], sizes)


@pytest.mark.parametrize("dtype", [f64, f32, f16, bf16, e4m3, e5m2])
def test_values_of_each_kind_are_there(dtype: Any) -> None:
    tensors = make_operands(problem_of("contiguous", {"...": (4096,)}, x=dtype), "special")
    x = tensors["x"].double()
    assert guards_intact(tensors["x"])
    limits = torch.finfo(tensors["x"].dtype)
    assert x.isnan().any()
    assert ((x == 0) & x.signbit()).any()
    assert (x == limits.max).any()
    assert ((x != 0) & (x.abs() < limits.tiny)).any()
    assert dtype is e4m3 or {math.inf, -math.inf} <= set(x[x.isinf()].tolist())
    assert (x.abs() < 8).float().mean() > 0.3


def test_some_rows_have_nothing_special_and_some_nothing_else() -> None:
    x = make_operands(dense(largest, M=64, N=200), "special")["x"]
    ordinary = (x.isfinite() & (x.abs() < 1e5)).all(1)
    alike = (x == x[:, :1]).all(1)
    assert ordinary.any()
    assert {-math.inf, math.inf} <= set(x[alike, 0].tolist())


def test_some_rows_are_far_from_0_where_exp_is_computed() -> None:
    x = make_operands(problem_of("softmax", {"...": (64,), "N": 200}), "special")["x"].float()
    finite = x.isfinite().all(1)
    assert bool((finite & (x < -88).all(1)).any()), "no row whose exp is 0"
    assert bool((finite & (x > 0).all(1)).any())


def test_of_a_single_line_each_seed_makes_one_special_case() -> None:
    problem = problem_of("reduce_max", {"...": (500,)})
    lines = [make_operands(problem, "special", seed)["x"] for seed in range(special_seeds(problem))]
    alike = {float(x[0]) for x in lines if bool((x == x[0]).all())}
    assert {math.inf, -math.inf} <= alike
    assert any(bool(x.isnan().any()) for x in lines)


@pytest.mark.parametrize(
    ("name", "sizes"), [("row_argmax", {"...": (64,), "N": 400}), ("reduce_argmax", {"...": (500,)})]
)
def test_some_lines_have_several_nan_among_numbers(name: str, sizes: dict[str, Any]) -> None:
    x = make_operands(problem_of(name, sizes), "special")["x"]
    count = x.reshape(-1, x.shape[-1]).isnan().sum(1)
    assert bool(((count > 1) & (count < x.shape[-1] / 2)).any())


def test_values_of_attention_add_up_before_they_are_divided() -> None:
    """A right kernel overflowed: of 140 columns some have the largest number of bf16, with weights of up to 1."""
    v = make_operands(
        problem_of("attention_full_bias", {"...": (1, 2), "G": 2, "M": 37, "N": 140, "D": 64, "E": 64}, q=bf16),
        "special",
    )["v"]
    finite = v.float().nan_to_num(0.0, 0.0, 0.0).abs()
    assert 1e35 < float(finite.max()) <= torch.finfo(torch.float32).max / 140


def test_scalars_of_inputs_are_not_all_defaults() -> None:
    graph = problem_of("attention_window_softcap", {"...": (1, 2), "G": 2, "M": 40, "N": 40, "D": 64, "E": 64}).graph
    assert scalar_values(graph)["left"] == scalar_values(graph, "special")["left"] == 1024
    shift, left, right = (scalar_values(graph, "normal")[name] for name in ("shift", "left", "right"))
    assert 0 < shift - left < 40  # of every row the first columns are hidden
    assert left > right > 0
    seed, offset = (scalar_values(problem_of("dropout", {"...": (8,)}).graph, "normal")[n] for n in ("seed", "offset"))
    assert seed >> 32
    assert offset >> 32 != offset + 8 >> 32
    threshold = scalar_values(problem_of("nms_padded", {"N": 8}).graph, "integers")["iou_threshold"]
    assert threshold < 0


def test_ids_lie_at_both_ends_and_beyond() -> None:
    problem = problem_of("embedding", {"...": (2000,), "V": 50, "C": 8})
    ids = make_operands(problem, "special")["ids"]
    assert {0, 49, 50, -1, torch.iinfo(ids.dtype).max, torch.iinfo(ids.dtype).min} <= set(ids.tolist())
    assert (ids[0], ids[-1]) == (49, 0)


def judged(function: Any, work: Callable[[dict[str, torch.Tensor]], torch.Tensor]) -> Verdict:
    """The verdict on Python code instead of a kernel, of special inputs alone."""
    gate = Gate(dense(function, M=48, N=160))
    gate.cases = [case for case in gate.cases if case.kind == "special"]
    assert gate.cases
    return gate.check(Scripted(lambda run, tensors: tensors["out"].copy_(work(tensors))))


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        (largest, lambda t: t["x"].amax(1), lambda t: t["x"].nan_to_num(-math.inf, math.inf, -math.inf).amax(1)),
        (largest, lambda t: t["x"].amax(1), lambda t: t["x"].clamp_min(-3.4028234e38).amax(1)),
        (total, lambda t: t["x"].sum(1), lambda t: t["x"].sum(1).clamp(-3e38, 3e38)),
        (total, lambda t: t["x"].flip(1).cumsum(1)[:, -1], lambda t: t["x"].nan_to_num(0.0, math.inf, -math.inf).sum(1)),
        # As rounded in f32, and as not rounded: both are right where x * x is beyond f32.
        (squares, lambda t: 1 / (t["x"] * t["x"]).sum(1), lambda t: (t["x"] * t["x"]).sum(1)),
        (squares, lambda t: 1 / (t["x"].double() ** 2).sum(1), lambda t: (t["x"] * t["x"]).sum(1) * 0),
        (scored, lambda t: t["x"].sigmoid() / t["y"], lambda t: (t["x"].exp() / (1 + t["x"].exp())) / t["y"]),
        (scored, lambda t: t["x"].sigmoid() / t["y"], lambda t: t["x"].sigmoid() / (t["y"] + 0.0)),  # -0 is 0
        (shifted, lambda t: (t["x"] * 1.5 + t["y"]) - t["x"], lambda t: t["x"] * 0.5),
    ],
)  # fmt: skip
def test_the_rule(function: Any, right: Any, wrong: Any) -> None:
    assert (verdict := judged(function, right)).ok, verdict.evidence
    assert not judged(function, wrong).ok


def test_doubt_is_rare_and_where_the_order_of_a_sum_decides() -> None:
    graph = Operator(total).graphs[0]
    big = torch.finfo(torch.float32).max
    x = torch.tensor(
        [
            [big, big, -big],
            [big, 1.0, 2.0],
            [math.inf, -math.inf, 0.0],
            [big, -math.inf, big],
            [big, big, 1.0],
            [1.0, 2.0, 3.0],
            [big, 3.0, -big],
        ]
    )
    (ranged,), (doubt,) = evaluate_ranged(graph, {"x": x}, {})
    assert doubt.reshape(-1).tolist() == [True, False, False, True, False, False, True]
    assert ranged.reshape(-1)[4:6].tolist() == [math.inf, 6]
    for function in (largest, total, squares, shifted, scored):
        problem = dense(function, M=48, N=160)
        tensors = make_operands(problem, "special")
        doubts = evaluate_ranged(problem.graph, tensors, {})[1]
        assert float(doubts[0].double().mean()) < 0.25
        assert evaluate(problem.graph, tensors, {})[0].isfinite().any()


def weighted(x: Tensor[f32, M, N], kept: Tensor[f32, M, 1], v: Tensor[f16, N, 1]) -> Tensor[f32, M, 1]:
    return cast(where(kept == 0, 0.0, x / kept), f16) @ v


def test_a_rows_factor_of_0_leaves_in_doubt_what_is_not_finite() -> None:
    """Its kernel multiplies by a condition and by a reciprocal, which is 0 where it would be a denormal."""
    rows = [
        (1.0, 1.0, 1.0, False),
        (math.nan, 0.0, 0.0, True),
        (math.inf, 3e38, math.inf, True),
        (math.nan, 1.0, math.nan, False),
        (1.0, 0.0, 0.0, False),
        (math.inf, 2.0, math.inf, False),
        (1.0, 3e38, 0.0, False),
    ]
    x, kept, values, doubts = ([row[i] for row in rows] for i in range(4))
    tensors = {
        "x": torch.tensor(x)[:, None].expand(-1, 2),
        "kept": torch.tensor(kept)[:, None],
        "v": torch.tensor([[1.0], [0.5]]).half(),
    }
    (ranged,), (doubt,) = evaluate_ranged(Operator(weighted).graphs[0], tensors, {})
    assert doubt[:, 0].tolist() == doubts
    finite = [value * (1.5 if value == 1 else 1) for value in values]
    torch.testing.assert_close(ranged[:, 0].double(), torch.tensor(finite).double(), equal_nan=True)


def shortened(x: Tensor[f16, M, N], v: Tensor[f16, N, K], length: Tensor[f32, N, 1]) -> Tensor[f32, M, K]:
    return cast(F.exp(x), f16) @ cast(where(length > 0, v, 0.0), f16)


def test_what_a_choice_leaves_out_of_an_input_is_not_looked_at() -> None:
    """As values behind a sequence's length: they are no weights, and what memory holds there may be NaN."""
    tensors = {
        "x": torch.zeros(1, 2).half(),
        "v": torch.tensor([[1.0, 2.0], [math.nan, math.inf]]).half(),
        "length": torch.tensor([[1.0], [0.0]]),
    }
    (ranged,), (doubt,) = evaluate_ranged(Operator(shortened).graphs[0], tensors, {})
    assert (ranged.tolist(), doubt.tolist()) == ([[1.0, 2.0]], [[False, False]])


def test_an_allowed_error_may_lead_beyond_the_range() -> None:
    """f16 ends at 65504, and rounds to infinity from 65520 on: an error of 16 takes one for the other, one of 4000 does not."""
    gate = Gate(problem_of("hgemm", {"M": 4, "N": 4, "K": 4}))

    def right(got: float, reference: float) -> bool:
        values = torch.tensor([got], dtype=torch.float16), torch.tensor([reference], dtype=torch.float64)
        return bool(gate._compare(*values, f16, f16, 32.0, 1e4, True, 0.0)[0])

    assert right(-65504.0, -65520.01)
    assert right(math.inf, 65500.0)
    assert not right(-math.inf, 65500.0)
    assert not right(math.inf, 61000.0)
    assert not right(65504.0, 70000.0)
