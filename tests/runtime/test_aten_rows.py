"""Every row of the table of ATen's ops: the expression gives what ATen gives, on the emulator."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Graph
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from kgen.dsl.errors import KgenError
from kgen.dsl.operator import Operator
from kgen.runtime.backend.aten import ROWS, Untaken
from kgen.runtime.backend.regions import build
from kgen.runtime.operator import KernelOperator

aten, prims = torch.ops.aten, torch.ops.prims
GENERATOR = torch.Generator().manual_seed(0)


def floats(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=GENERATOR).to(dtype)


X, Y, Z = floats(3, 6), floats(3, 6), floats(3, 6)
POSITIVE = X.abs() + 0.5
BOOLS = (X > 0, Y > 0)
IDS = torch.tensor([[1], [5], [0]])
TWO, ONE = floats(4, 5, dtype=torch.float16), floats(5, 6, dtype=torch.float16)
UNARY = [
    "neg", "abs", "exp", "exp2", "expm1", "tanh", "erf", "erfc", "sigmoid", "sin", "cos", "floor", "ceil", "round", "relu",
    "silu",
]  # fmt: skip
OF_POSITIVE = ["log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]

#: Calls of each op: operands, and keywords in a dictionary at the end.
CASES = {
    **{getattr(aten, name).default: [(X,)] for name in UNARY},
    **{getattr(aten, name).default: [(POSITIVE,)] for name in OF_POSITIVE},
    **{getattr(aten, n).Tensor: [(X, torch.where(BOOLS[0], X, Y))] for n in COMPARISONS},
    **{getattr(aten, n).Scalar: [(X, 0.25), (IDS, 1)] for n in COMPARISONS},
    aten.mul.Tensor: [(X, Y), (X, floats(6)), (floats(2, 1, 6), X)],
    aten.mul.Scalar: [(X, 3.0)],
    aten.add.Tensor: [(X, Y), (X, Y, {"alpha": 2}), (IDS, 7)],
    aten.add.Scalar: [(X, 2)],
    aten.sub.Tensor: [(X, Y), (X, Y, {"alpha": 0.5})],
    aten.sub.Scalar: [(X, 2)],
    aten.div.Tensor: [(X, POSITIVE), (IDS, 4)],
    aten.div.Scalar: [(X, 3.0)],
    aten.div.Tensor_mode: [(X, POSITIVE, {"rounding_mode": None})],
    aten.pow.Tensor_Scalar: [(POSITIVE, p) for p in (1.0, 2, 3, 0.5, -0.5, -1, 1.7)],
    aten.pow.Tensor_Tensor: [(POSITIVE, Y)],
    aten.pow.Scalar: [(10000.0, Y)],
    aten.clamp.default: [(X, -0.5, 0.5), (X, None, 0.5), (X, 0.0)],
    aten.clamp.Tensor: [(X, Y)],
    aten.maximum.default: [(X, Y)],
    aten.minimum.default: [(X, Y)],
    aten.clamp_min.default: [(X, 0.25)],
    aten.clamp_max.default: [(X, 0.25)],
    aten.gelu.default: [(X,), (X, {"approximate": "tanh"})],
    aten.where.self: [(BOOLS[0], X, Y)],
    aten.logical_and.default: [BOOLS],
    aten.bitwise_and.Tensor: [BOOLS],
    aten.logical_or.default: [BOOLS],
    aten.bitwise_or.Tensor: [BOOLS],
    aten.logical_not.default: [BOOLS[:1]],
    aten.bitwise_not.default: [BOOLS[:1]],
    prims.convert_element_type.default: [
        (X, torch.float16), (X, torch.int64), (BOOLS[0], torch.float32), (X, torch.bool), (IDS, torch.float32),
    ],
    aten._to_copy.default: [(X, {"dtype": torch.bfloat16})],
    aten.sum.dim_IntList: [(X, [1]), (X, [-1], True), (X, [0]), (floats(2, 3, 5), [0, 1])],
    aten.sum.default: [(X,), BOOLS[:1]],
    aten.mean.dim: [(X, [1]), (X, [-1], True)],
    aten.mean.default: [(X,)],
    aten.amax.default: [(X, [1]), (X, [-1], True)],
    aten.amin.default: [(X, [1])],
    aten.var_mean.correction: [(X, [1], {"correction": 0, "keepdim": True})],
    aten.var.correction: [(X, [1], {"correction": 0})],
    aten._softmax.default: [(X, -1, False)],
    aten._log_softmax.default: [(X, 1, False)],
    aten.gather.default: [(X, 1, IDS)],
    aten.mm.default: [(TWO, ONE), (floats(4, 5), floats(5, 3))],
    aten.bmm.default: [(floats(2, 4, 5, dtype=torch.bfloat16), floats(2, 5, 3, dtype=torch.bfloat16))],
    aten.addmm.default: [(floats(6, dtype=torch.float16), TWO, ONE), (floats(4, 6, dtype=torch.float16), TWO, ONE, {"alpha": 2}),
        (torch.full((6,), torch.nan).half(), TWO, ONE, {"beta": 0, "alpha": 0.5})],
    aten.baddbmm.default: [(floats(2, 4, 3), floats(2, 4, 5), floats(2, 5, 3), {"beta": 0.5})],
    aten.embedding.default: [(floats(7, 4), torch.tensor([[0, 6], [3, 3]]))],
}  # fmt: skip
#: Constants and views compute nothing by themselves: each as it is used, of X.
USED = {
    aten.full.default: lambda x: plus(x, made(x, aten.full.default, [], 1.5, dtype=torch.float32)),
    aten.scalar_tensor.default: lambda x: plus(x, made(x, aten.scalar_tensor.default, 1.5, dtype=torch.float32)),
    aten.full_like.default: lambda x: plus(x, aten.full_like.default(x, 0.25)),
    prims.iota.default: lambda x: plus(
        x, made(x, prims.iota.default, 6, start=0, step=1, dtype=torch.int64, device="cpu", requires_grad=False)
    ),
    **{op: lambda x, op=op: exp(op(exp(x))) for op in (aten.clone.default, aten.alias.default, aten.detach.default)},
    **{
        op: lambda x, op=op: plus(op(row_sums(x), [3, 1]), x)
        for op in (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
    },
    aten.unsqueeze.default: lambda x: plus(aten.unsqueeze.default(row_sums(x), 1), x),
    aten.squeeze.dim: lambda x: exp(aten.squeeze.dim(row_sums(x, True), 1)),
    aten.squeeze.dims: lambda x: exp(aten.squeeze.dims(row_sums(x, True), [1])),
    aten.expand.default: lambda x: plus(aten.expand.default(row_sums(x, True), [3, 6]), x),
    operator.getitem: lambda x: exp(aten.var_mean.correction(x, [1], correction=0)[1]),
}
plus, exp = aten.add.Tensor, aten.exp.default


def made(x, op, *arguments, **keywords):
    """A call that takes no tensor, in the graph that x is of."""
    return x.tracer.create_proxy("call_function", op, arguments, keywords)


def number(x):
    return made(x, aten.full.default, [], 0, dtype=torch.int64)


def row_sums(x, keep=False):
    return aten.sum.dim_IntList(x, [1], keep)


def traced(function, tensors):
    """torch's graph of a function of tensors, whose calls are those that it makes, and its place of every node."""
    graph = Graph()
    constants = [graph.create_node("placeholder", f"a{k}") for k in range(len(tensors))]
    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    found = function(*(torch.fx.Proxy(n, tracer) for n in constants))
    graph.output(tuple(y.node for y in found) if isinstance(found, tuple) else found.node)
    gm = torch.fx.GraphModule({}, graph)
    FakeTensorProp(gm).propagate(*tensors)
    return gm


def region_of(gm):
    """The region of all of a graph's calls."""
    nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
    return build(nodes, {n: k for k, n in enumerate(gm.graph.nodes)})


def check(function, tensors):
    """That kgen's operator of a function gives what torch's ops give."""
    gm = traced(function, tensors)
    region = region_of(gm)
    given = dict(zip([n for n in gm.graph.nodes if n.op == "placeholder"], tensors))
    results = KernelOperator(Operator.of_graphs([region.graph], "", {}))(*(given[n] for n in region.inputs))
    results = results if isinstance(results, tuple) else (results,)
    expected = gm(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(results) == len(expected) == len(region.outputs)
    for result, value, wanted in zip(results, region.values, expected):
        gone = [a for a in range(-len(value.expr.shape.dims), 0) if a not in value.axes]
        torch.testing.assert_close(result.squeeze(gone) if gone else result, wanted)
    return gm


def test_every_row_has_a_case():
    assert {*CASES, *USED} == set(ROWS)
    assert not set(CASES) & set(USED)


@pytest.mark.parametrize("op", CASES, ids=str)
def test_an_expression_gives_what_aten_gives(op):
    for case in CASES[op]:
        keywords = case[-1] if isinstance(case[-1], dict) else {}
        arguments = case[: len(case) - bool(keywords)]

        def function(*tensors, arguments=arguments, keywords=keywords):
            left = iter(tensors)
            found = op(*(next(left) if isinstance(x, torch.Tensor) else x for x in arguments), **keywords)
            return (found[0], found[1]) if op is aten.var_mean.correction else found

        check(function, [x for x in arguments if isinstance(x, torch.Tensor)])


@pytest.mark.parametrize("op", USED, ids=str)
def test_views_and_constants_give_what_aten_gives(op):
    gm = check(USED[op], [X])
    assert any(n.target is op for n in gm.graph.nodes)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: plus(aten.view.default(row_sums(x), [1, 3]), 1), "axes of size 1 before"),
        (lambda x: exp(aten.view.default(exp(x), [6, 3])), "splits or joins"),
        (lambda x: aten.var.correction(x, [1], correction=1), "of a sample"),
        (lambda x: aten.div.Tensor_mode(x, 2.0, rounding_mode="floor"), "rounds quotients"),
        (lambda x: aten.mm.default(exp(x), aten.permute.default(x, [1, 0])), "no such op"),
        (lambda x: aten.mm.default(exp(x), aten.view.default(x, [6, 3])), "not in memory|splits"),
        (lambda x: aten.gather.default(x, 0, made(x, aten.full.default, [1, 6], 0, dtype=torch.int64)), "one element a row"),
        (lambda x: aten.gather.default(aten.sum.default(x), 0, number(x)), "one element a row"),
        (lambda x: aten.sum.dim_IntList(aten.sum.default(x), [0]), "one number"),
        (lambda x: aten._softmax.default(aten.sum.default(x), -1, False), "one number"),
        (lambda x: aten.cumsum.default(x, 1), "no such op"),
        (lambda x: aten.gelu.default(aten.complex.default(x, x)), "no such op"),
        (lambda x: exp(aten.bitwise_not.default(aten._to_copy.default(x, dtype=torch.int32))), "no bools"),
        (lambda x: aten._to_copy.default(x, dtype=torch.float8_e8m0fnu), "float8_e8m0fnu are not supported"),
    ],
)  # fmt: skip
def test_what_is_not_the_same_is_left(function, why):
    gm = traced(function, [X])
    with pytest.raises((Untaken, KgenError), match=why):
        region_of(gm)
