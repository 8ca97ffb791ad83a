"""Derivatives: every op's against finite differences, every operator's against torch's autograd through the same graph."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from test_ops import leaf, node_of
from torch import Tensor

from kgen.dsl import functions as f
from kgen.dsl.derivatives import DERIVATIVES, rule_of
from kgen.dsl.expr import Expr, where
from kgen.dsl.gradient import NoDerivative, Source, backward, differentiable, launch_count, training
from kgen.dsl.invariance import STILL, ways
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.operator import Tensor as Type
from kgen.dsl.ops import OPS, POINTWISE
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import f32
from kgen.numerics.operands import make_operands, scalar_values
from kgen.numerics.reference import evaluate
from kgen.numerics.values import VALUES, Arithmetic
from kgen.ops import operators
from kgen.runtime.gradients import way_of

#: What has no derivative, and why: by all its inputs.
LACKING = {
    "attention_causal_fp8_lse": "gradients of fp8 factors",
    "attention_causal_pages_of_16_lengths": "ids of one axis",
    "fp8gemm": "gradients of fp8 factors",
    "fp8gemm_blockwise": "no dimension",
    "fp8gemm_vectorwise": "no dimension",
    "grouped_hgemm": "product of each group's rows",
    "merge_heads": "ids of one axis",
    "cumprod": "sums from the end of a row",
    "logcumsumexp": "sums from the end of a row",
}
SIZES = {"M": 5, "N": 6, "K": 4, "G": 3, "D": 8, "P": 4, "S1": 2, "S2": 3, "S": 5, "OH": 7, "OW": 4}
FLOATS = {name: op for name, op in operators().items() if any(s.dtype.is_float for s in op.graphs[0].outputs)}
(N,) = dims("N")


def test_every_op_has_a_derivative_or_says_why_not() -> None:
    assert sorted(DERIVATIVES) == sorted(OPS)
    for name, rules in DERIVATIVES.items():
        assert len(rules) == len(OPS[name].roles)


@pytest.mark.parametrize("op", sorted(name for name in POINTWISE if any(DERIVATIVES[name]) and name != "where"))
def test_a_rule_is_the_derivative(op: str) -> None:
    node = node_of(op) if op != "cast" else f.cos(leaf("x", f32))
    how, generator = Arithmetic(), torch.Generator().manual_seed(1)
    operands = [torch.rand(50, generator=generator, dtype=torch.float64) + 0.2 for _ in node.args]
    if op == "where":
        operands[0] = operands[0] > 0.7
    value = functools.partial(VALUES[node.op], node, how=how)
    for place, operand in enumerate(node.args):
        if rule_of(node, place) is None:
            continue
        graph = Graph("one", (), (), (), (rule_of(node, place)(node, leaf("g", f32)),), node.where)  # type: ignore[operator,arg-type]
        names = {a.attr: x for a, x in zip(node.args, operands)}
        how.begin(graph, {**names, "g": torch.ones(50, dtype=torch.float64)}, {})
        found = _value(graph.results[0], how)
        step = 1e-6
        ahead, back = ([x + s * step if i == place else x for i, x in enumerate(operands)] for s in (1, -1))
        expected = (value(ahead) - value(back)) / (2 * step)
        torch.testing.assert_close(found.expand(50), expected, rtol=1e-7, atol=1e-8)
        assert operand.op == "input"


def _value(node: Expr, how: Arithmetic) -> Tensor:
    return VALUES[node.op](node, [_value(a, how) for a in node.args], how)


def made(graph: Graph) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Inputs of small sizes, floats in float64, and numbers."""
    sizes = {d: SIZES.get(d, 4) for d in graph.dims}
    lead = {"...": (2, 3)} if any(s.shape.leading for s in (*graph.inputs, *graph.outputs)) else {}
    tensors = make_operands(Problem.dense(graph, {**sizes, **lead}))
    names = [spec.name for spec in graph.inputs]
    return {n: x.double() if x.is_floating_point() else x for n, x in tensors.items()}, scalar_values(graph) | {
        s.name: 0.25 for s in graph.scalars if s.name == "p" and names
    }


def run(graph: Graph, tensors: list[Tensor], sizes: dict[str, int], numbers: dict[str, float]) -> tuple[Tensor, ...]:
    """By the reference; sizes that no input tells come from an output's."""
    given = dict(zip((s.name for s in graph.inputs), tensors))
    known = dict(sizes)
    for spec, x in zip(graph.inputs, tensors):
        known |= {d.name: n for d, n in zip(reversed(spec.shape.dims), reversed(x.shape)) if not isinstance(d, int)}
    for spec in graph.outputs:
        lead = (2, 3) if spec.shape.leading else ()
        given[spec.name] = torch.empty([*lead, *(d if isinstance(d, int) else known[d.name] for d in spec.shape.dims)])
    return evaluate(graph, given, {s.name: numbers[s.name] for s in graph.scalars})


def gradients(
    graph: Graph, inputs: list[Tensor], outputs: list[Tensor], given: list[Tensor | None], numbers: dict[str, float]
) -> list[Tensor | None]:
    """The gradients of all float inputs from those of the outputs, None for zeros, as a call has them."""
    there = tuple(k for k, gradient in enumerate(given) if gradient is not None)
    wanted = tuple(i for i, spec in enumerate(graph.inputs) if spec.dtype.is_float)
    known = {Source("input", i): x for i, x in enumerate(inputs)} | {
        Source("output", k): y for k, y in enumerate(outputs)
    }
    known |= {Source("gradient", k): given[k] for k in there}
    shapes, result_shapes = [x.shape for x in inputs], [y.shape for y in outputs]
    way = way_of(graph, list(known), there, wanted, shapes, result_shapes)
    values = list(known.values())
    results = () if way.graph is None else run(way.graph, list(way.inputs(values)), dict(way.sizes), numbers)
    return way.gradients(values, results)


def both(graph: Graph) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The derivation's gradients and autograd's, of the graph's inputs, for random gradients of its results."""
    tensors, numbers = made(graph)
    whole = training(graph)
    inputs = [tensors[s.name].clone().requires_grad_(s.dtype.is_float) for s in graph.inputs]
    outs = {s.name: tensors[s.name] for s in graph.outputs}
    results = evaluate(whole, {**dict(zip((s.name for s in graph.inputs), inputs)), **outs}, numbers)
    floats = [k for k, s in enumerate(graph.outputs) if s.dtype.is_float]
    seeds = {k: torch.randn_like(results[k]) for k in floats if results[k].requires_grad}
    wanted = [inputs[i] for i in differentiable(graph)]
    expected = torch.autograd.grad([results[k] for k in seeds], wanted, list(seeds.values()), allow_unused=True)
    with torch.no_grad():
        # In float64 all along: nothing is rounded that the graphs do not round.
        seeded = [seeds.get(k) for k in range(len(results))]
        found = gradients(whole, [x.detach() for x in inputs], [y.detach() for y in results], seeded, numbers)
    return [found[i] for i in differentiable(graph)], list(expected)


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_an_operators_derivative_is_autograds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgen.runtime.gradients.torch_dtype", lambda dtype: torch.float64)
    graph = FLOATS[name].graphs[0]
    if name in LACKING:
        with pytest.raises(NoDerivative, match=f"{name} has no derivative by .*{LACKING[name]}.*@{name}.gradient"):
            backward(graph, tuple(range(len(graph.outputs))), differentiable(graph))
        return
    found, expected = both(graph)
    for x, y in zip(found, expected):
        assert x is not None
        tolerance = _rounding(graph)
        y = torch.zeros_like(x) if y is None else y
        torch.testing.assert_close(x, y, rtol=tolerance, atol=2 * tolerance, equal_nan=True)


def test_a_derivative_that_nothing_serves_says_whose_it_is() -> None:
    graph = training(operators()["fp8gemm_blockwise"].graphs[0])
    with pytest.raises(NoDerivative, match=r"no derivative by a, b: no family serves.*@fp8gemm_blockwise\.gradient"):
        backward(graph, (0,), (0, 1))


def _rounding(graph: Graph) -> float:
    """What the graphs themselves round: factors of products to f16, and what is cast."""
    if any(n.op == "matmul" for n in graph.nodes):
        return 2e-3
    return 1e-6 if any(n.op == "cast" and n.dtype is f32 for n in graph.nodes) else 1e-9


@pytest.mark.parametrize(
    ("name", "shipped"),
    [
        ("softmax", ["softmax_backward"]),
        ("layer_norm_forward", ["layer_norm_backward", "layer_norm_backward_weight"]),
        ("rms_norm_forward", ["rms_norm_backward", "rms_norm_backward_weight"]),
        ("dropout", ["dropout_backward"]),
        ("embedding", ["embedding_backward"]),
        ("upsample_nearest", ["upsample_nearest_backward"]),
    ],
)
def test_shipped_gradients_take_what_the_derivation_takes(name: str, shipped: list[str]) -> None:
    """As many launches, and no more operands: those that are written by hand have nothing on the derived ones."""
    graph = operators()[name].graphs[0]
    assert training(graph) is graph
    found = backward(graph, (0,), differentiable(graph)).graph
    assert found is not None
    assert launch_count(found) == len(shipped)
    by_hand = [operators()[one].graphs[0] for one in shipped]
    assert len(found.inputs) == len({s.name for g in by_hand for s in g.inputs})


def test_what_is_kept() -> None:
    def kept(name: str) -> list[str]:
        graph = operators()[name].graphs[0]
        return [str(s) for s in training(graph).outputs[len(graph.outputs) :]]

    assert kept("softmax") == kept("linear") == kept("gelu") == kept("rope") == []
    assert kept("layer_norm") == ["mean: f32[..., 1]", "rsqrt: f32[..., 1]"]
    assert kept("linear_gelu") == ["matmul: f16[..., M, N]"]
    # Scores would cost launches; numbers of rows do not.
    assert kept("attention_full") == ["where: f32[..., G, M, 1]", "sum: f32[..., G, M, 1]"]
    # The larger of a maximum and a sink has no part in the result, as the maximum has none.
    assert kept("attention_causal_sinks_lse") == [f"{name}: f32[..., G, M, 1]" for name in ("where", "exp", "add")]


def edges(function: object) -> Graph:
    function.__annotations__ = {"x": Type[f32, N], "return": Type[f32, N]}  # type: ignore[attr-defined]
    return Operator(function, "edge").graphs[0]  # type: ignore[arg-type]


def derived(graph: Graph, x: Tensor, y: tuple[Tensor, ...], given: list[Tensor | None]) -> Tensor | None:
    (found,) = gradients(graph, [x], list(y), given, {})
    return found


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (f.relu, torch.relu),
        (abs, torch.abs),
        (lambda x: f.clamp(x, -1.0, 1.0), lambda x: torch.clamp(x, -1.0, 1.0)),
        (lambda x: f.amax(x) + 0 * x, lambda x: x.amax(-1, keepdim=True) + 0 * x),
        (f.hardshrink, torch.nn.functional.hardshrink),
        (f.elu, torch.nn.functional.elu),
        (lambda x: f.pow(x, 2.0), lambda x: x**2.0),
    ],
)
def test_edges_are_torchs(ours: object, torchs: object) -> None:
    def function(x: Expr) -> Expr:
        return ours(x)  # type: ignore[operator,no-any-return]

    graph = edges(function)
    x = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 3.0, -7.0], dtype=torch.float64, requires_grad=True)
    whole = training(graph)
    y = evaluate(whole, {"x": x.detach()}, {})
    g = torch.arange(1.0, 10.0, dtype=torch.float64)
    given = [g, *([None] * (len(y) - 1))]
    found = derived(whole, x.detach(), y, given)
    torchs(x).backward(g)  # type: ignore[operator]
    assert found is not None
    torch.testing.assert_close(found.double(), x.grad, rtol=1e-6, atol=1e-6)


def test_what_is_not_chosen_spoils_nothing() -> None:
    def function(x: Expr) -> Expr:
        return where(x > 0, f.sqrt(x), f.expm1(x * 0))

    graph = edges(function)
    x = torch.tensor([-4.0, 4.0], dtype=torch.float64)
    y = evaluate(graph, {"x": x}, {})
    found = derived(graph, x, y, [torch.ones(2)])
    assert found is not None
    assert found.tolist() == [0.0, 0.25]


def test_a_largest_element_that_does_not_count_is_not_differentiated() -> None:
    graph = operators()["cross_entropy"].graphs[0]
    found = backward(training(graph), (0,), (0,)).graph
    assert found is not None
    assert not [n.op for n in found.nodes if n.op in ("amax", "sum")]
    # Where it does count, it is.
    moved = edges(lambda x: f.exp(x - f.amax(x)))
    found = backward(moved, (0,), (0,)).graph
    assert found is not None
    assert [n.op for n in found.nodes if n.op == "sum"]


@pytest.mark.parametrize("name", ["attention_full", "attention_causal_lse", "attention_causal_sinks_lse"])
def test_a_sum_over_a_products_columns_is_one_over_its_result(name: str) -> None:
    """Of softmax(scores) @ v the one sum that is left over rows is that of grad * out; the largest score has no part."""
    whole = training(operators()[name].graphs[0])
    found = backward(whole, (0,), (0, 1, 2)).graph
    assert found is not None
    sums = [n for n in found.nodes if n.op in ("sum", "amax") and n.attr == -1]
    assert [[x.attr for x in n.args[0].args] for n in sums] == [
        [f"grad_{whole.outputs[0].name}", whole.outputs[0].name]
    ]


@pytest.mark.parametrize(("bound", "shown"), [(-math.inf, True), (3.0, False)])
def test_a_guard_of_an_infinite_maximum_moves_as_the_maximum_does(bound: float, shown: bool) -> None:
    """log_softmax with a guard; one of a finite maximum is another function of it."""

    def function(x: Expr) -> Expr:
        top = f.amax(x)
        return x - (top + f.log(f.sum(f.exp(x - where(top == bound, 0.0, top)))))

    graph = edges(function)
    graph = graph.merged
    (top,) = (n for n in graph.nodes if n.op == "amax")
    assert (ways(graph.nodes, top)[id(graph.results[0])] == STILL) is shown


def test_dtypes() -> None:
    """A gradient has its input's dtype; between, nothing is rounded but factors of products."""
    for dtype, graph in zip(("f16", "bf16", "f32", "f64"), operators()["layer_norm"].graphs):
        found = backward(training(graph), (0,), (0, 1, 2)).graph
        assert found is not None
        assert [s.dtype.name for s in found.outputs] == [dtype] * 3
        assert {n.dtype.name for n in found.nodes if n.op == "sum"} == {"f64" if dtype == "f64" else "f32"}
