"""Problems: shapes that fit, layouts, alignment of rows, keys, and the message where a shape does not fit."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from kgen.dsl.errors import ArgumentError, DefinitionError, KgenError
from kgen.dsl.family import Family, family_of, register_family, schedules
from kgen.dsl.indexing import repeat
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem, common_alignment, dense_strides, read_operand
from kgen.dsl.size import ceil_div, dims
from kgen.dsl.types import f16, f32, i8
from kgen.ops import operators

M, N, K = dims("M N K")


def linear(x: Tensor[f16, ..., M, K], w: Tensor[f16, K, N], b: Tensor[f16, N]) -> Tensor[f16, ..., M, N]:
    return x @ w + b


GRAPH = Operator(linear).graphs[0]


def dense(name: str, *shape: int) -> Operand:
    return Operand(name, f16, shape, dense_strides(shape))


def bound(x: tuple[int, ...], w: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...]) -> Problem:
    return Problem.bind(GRAPH, [dense("x", *x), dense("w", *w), dense("b", *b), dense("out", *out)])


@Operator
def scaled(x: Tensor[f16, ..., M, K], s: Tensor[f32, M, ceil_div(K, 4)]) -> Tensor[f32, ..., M, K]:
    return x * repeat(s, 4, K)


def test_sizes_that_follow_from_others() -> None:
    graph = scaled.graphs[0]
    assert graph.dims == ("M", "K")
    assert Problem.dense(graph, {"M": 3, "K": 9}).operand("s").shape == (3, 3)
    shapes = {"x": (3, 9), "s": (3, 2), "out": (3, 9)}
    operands = [Operand(n, f16 if n == "x" else f32, s, dense_strides(s)) for n, s in shapes.items()]
    with pytest.raises(ArgumentError) as error:
        Problem.bind(graph, operands)
    assert str(error.value) == "scaled: s has ceil_div(K, 4)=2 in [3, 2]; expected 3, since K=9"


def test_binding_names_every_size() -> None:
    problem = bound((2, 3, 5, 7), (7, 11), (11,), (2, 3, 5, 11))
    assert problem.sizes == {"M": 5, "K": 7, "N": 11}
    assert problem.leading == (2, 3)
    assert [o.name for o in problem.inputs] == ["x", "w", "b"]
    assert [o.name for o in problem.outputs] == ["out"]
    assert problem.operand("w").shape == (7, 11)
    assert problem.bytes == 2 * (2 * 3 * 5 * 7 + 7 * 11 + 11 + 2 * 3 * 5 * 11)
    assert not problem.empty
    assert bound((0, 7), (7, 11), (11,), (0, 11)).empty


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        (
            ((5,), (7, 11), (11,), (5, 11)),
            "linear: x has 1 dimensions [5]; expected at least 2, as in x: f16[..., M, K]",
        ),
        (((5, 7), (2, 7, 11), (11,), (5, 11)), "linear: w has 3 dimensions [2, 7, 11]; expected 2, as in w: f16[K, N]"),
        (((5, 7), (8, 11), (11,), (5, 11)), "linear: w has K=8 in [8, 11]; expected 7, since x has K=7"),
        (((5, 7), (7, 11), (12,), (5, 11)), "linear: b has N=12 in [12]; expected 11, since w has N=11"),
        (((5, 7), (7, 11), (11,), (6, 11)), "linear: out has M=6 in [6, 11]; expected 5, since x has M=5"),
        (((2, 5, 7), (7, 11), (11,), (3, 5, 11)), "linear: out has shape [3, 5, 11]; expected leading sizes [2]"),
        (((2, 5, 7), (7, 11), (11,), (5, 11)), "linear: out has shape [5, 11]; expected leading sizes [2]"),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ArgumentError) as error:
        bound(*shapes)
    assert str(error.value) == told


def fixed(x: Tensor[f16, 4, N]) -> Tensor[f16, 4, N]:
    return x


def test_sizes_that_the_signature_fixes() -> None:
    graph = Operator(fixed).graphs[0]
    assert Problem.bind(graph, [dense("x", 4, 9), dense("out", 4, 9)]).sizes == {"N": 9}
    with pytest.raises(ArgumentError, match=r"fixed: x has 4=5 in \[5, 9\]; expected 4"):
        Problem.bind(graph, [dense("x", 5, 9), dense("out", 5, 9)])


def added(x: Tensor[f16, ...], y: Tensor[f16, ...]) -> Tensor[f16, ...]:
    return x + y


@pytest.mark.parametrize(
    ("x", "y", "out"),
    [((3,), (3,), (3,)), ((2, 1), (3,), (2, 3)), ((), (4, 5), (4, 5)), ((1, 7), (6, 1), (6, 7)), ((0, 3), (1, 3), (0, 3))],
)  # fmt: skip
def test_leading_sizes_broadcast(x: tuple[int, ...], y: tuple[int, ...], out: tuple[int, ...]) -> None:
    graph = Operator(added).graphs[0]
    assert Problem.bind(graph, [dense("x", *x), dense("y", *y), dense("out", *out)]).leading == out


def test_leading_sizes_that_do_not_broadcast() -> None:
    graph = Operator(added).graphs[0]
    with pytest.raises(
        ArgumentError, match=r"added: leading sizes \[2, 3\], \[4, 3\] do not broadcast; expected equal sizes or 1"
    ):
        Problem.bind(graph, [dense("x", 2, 3), dense("y", 4, 3), dense("out", 4, 3)])


def test_dense_problems() -> None:
    problem = Problem.dense(GRAPH, {"...": (2,), "M": 3, "K": 4, "N": 5}, {"w": "col"})
    assert [(o.shape, o.strides) for o in problem.operands] == [
        ((2, 3, 4), (12, 4, 1)),
        ((4, 5), (1, 4)),
        ((5,), (1,)),
        ((2, 3, 5), (15, 5, 1)),
    ]
    assert [o.layout for o in problem.operands] == ["row", "col", "row", "row"]
    assert str(problem) == "linear(2 M=3 K=4 N=5 f16 col)"
    assert problem.key == "x:f16[2,3,4]row w:f16[4,5]col b:f16[5]row out:f16[2,3,5]row"
    assert Problem.dense(GRAPH, {"...": 2, "M": 3, "K": 4, "N": 5}, {"w": "col"}) == problem


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"M": 1, "N": 2}, "missing K; expected M, K, N"),
        ({"M": 1, "N": 2, "K": 3, "L": 4}, "unknown L; expected M, K, N"),
        ({"M": -1, "N": 2, "K": 3}, "sizes M=-1; expected integers that are not negative"),
        ({"M": 1.5, "N": 2, "K": 3}, "sizes M=1.5; expected integers that are not negative"),
        ({"...": (2, -1), "M": 1, "N": 2, "K": 3}, "sizes ...=(2, -1); expected integers that are not negative"),
    ],
)
def test_sizes_that_are_none(sizes: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError) as error:
        Problem.dense(GRAPH, sizes)
    assert str(error.value).startswith("linear: ")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("operand", "align"),
    [
        (Operand("x", f16, (4, 8), (8, 1)), 16),
        (Operand("x", f16, (4, 12), (12, 1)), 8),
        (Operand("x", f16, (4, 7), (7, 1)), 2),
        (Operand("x", f16, (4, 7), (8, 1)), 16),
        (Operand("x", f16, (4, 8), (8, 1), 4), 4),
        (Operand("x", f16, (8, 4), (1, 8)), 16),
        (Operand("x", f16, (8, 4), (1, 9)), 2),
        (Operand("x", f16, (4, 8), (16, 2)), 4),
        (Operand("x", f16, (4, 8), (0, 1)), 16),
        (Operand("x", f16, (1, 7), (7, 1)), 16),
        (Operand("x", f16, (3, 4, 8), (33, 8, 1)), 2),
        (Operand("x", f32, (5,), (1,)), 16),
        (Operand("x", i8, (5, 2), (2, 1)), 2),
        (Operand("x", f16, (), ()), 16),
        (Operand("x", f16, (8, 4, 4), (1, 16, 4)), 2),
    ],
)
def test_alignment_of_rows(operand: Operand, align: int) -> None:
    assert operand.row_align == align


@pytest.mark.parametrize(
    ("shape", "strides", "layout"),
    [
        ((3, 4), (4, 1), "row"),
        ((3, 4), (1, 3), "col"),
        ((2, 3, 4), (12, 1, 3), "col"),
        ((3, 4), (8, 1), "strides(8,1)"),
        ((3, 4), (0, 1), "strides(0,1)"),
        ((5,), (1,), "row"),
        ((5,), (2,), "strides(2)"),
        ((), (), "row"),
        ((1, 4), (4, 1), "row"),
    ],
)
def test_layouts(shape: tuple[int, ...], strides: tuple[int, ...], layout: str) -> None:
    assert Operand("x", f16, shape, strides).layout == layout


def test_alignment_of_addresses() -> None:
    assert [common_alignment(n) for n in (0, 1, 2, 6, 8, 48, 4096)] == [16, 1, 2, 2, 8, 16, 16]
    assert common_alignment(16, 24) == 8
    assert str(Operand("x", f16, (4,), (1,), 2)) == "x:f16[4]row@2"


def test_problems_are_values_that_travel() -> None:
    problem = Problem.dense(GRAPH, {"M": 3, "K": 4, "N": 5})
    assert problem == Problem.dense(GRAPH, {"M": 3, "K": 4, "N": 5})
    assert hash(problem) == hash(Problem.dense(GRAPH, {"M": 3, "K": 4, "N": 5}))
    assert problem != Problem.dense(GRAPH, {"M": 3, "K": 4, "N": 6})
    back = pickle.loads(pickle.dumps(problem))
    assert (back.key, back.graph.digest, str(back)) == (problem.key, problem.graph.digest, str(problem))
    assert back == problem


def test_problems_of_an_operator_traced_twice_are_one() -> None:
    sizes = {"M": 3, "K": 4, "N": 5}
    again = Problem.dense(Operator(linear).graphs[0], sizes)
    assert again == Problem.dense(GRAPH, sizes)
    assert {again: 1}[Problem.dense(GRAPH, sizes)] == 1
    assert family_of(GRAPH).normalise(again) == family_of(GRAPH).normalise(Problem.dense(GRAPH, sizes))
    other = Problem.dense(Operator(linear, "other").graphs[0], sizes)
    assert other != again


def collapsed(name: str, *shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """The key of a pointwise f16 problem after its family has seen it."""
    graph = operators()[name].graphs[0]
    specs = (*graph.inputs, *graph.outputs)
    operands = [Operand(spec.name, spec.dtype, *shape) for spec, shape in zip(specs, shapes)]
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    assert family_of(graph).normalise(problem) is problem
    assert problem.origin is not None
    return problem.key


def test_elementwise_problems_collapse() -> None:
    row, col = ((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (1, 2, 6))
    assert collapsed("gelu", row, row) == "x:f16[24]row out:f16[24]row"
    assert collapsed("gelu", col, col) == "x:f16[24]row out:f16[24]row"
    assert collapsed("gelu", ((5, 1), (1, 1)), ((5, 1), (1, 1))) == "x:f16[5]row out:f16[5]row"
    assert collapsed("gelu", ((4, 6), (8, 1)), ((4, 6), (6, 1))) == "x:f16[4,6]strides(8,1) out:f16[4,6]row"
    assert collapsed("gelu", ((1, 1), (1, 1)), ((1, 1), (1, 1))) == "x:f16[1]row out:f16[1]row"
    bias = collapsed("bias_gelu", ((2, 3, 4), (12, 4, 1)), ((4,), (1,)), ((2, 3, 4), (12, 4, 1)))
    assert bias == "x:f16[6,4]row b:f16[6,4]strides(0,1) out:f16[6,4]row"
    scalar = collapsed("add", ((2, 3), (3, 1)), ((1, 1), (1, 1)), ((2, 3), (3, 1)))
    assert scalar == "a:f16[6]row b:f16[6]strides(0) out:f16[6]row"


def test_gemm_problems_merge_batches_and_fold_them_into_rows() -> None:
    def key(name: str, sizes: dict[str, Any]) -> str:
        graph = operators()[name].graphs[0]
        return family_of(graph).normalise(Problem.dense(graph, sizes)).key

    sizes = {"M": 5, "N": 8, "K": 16}
    assert key("linear", {"...": (2, 3), **sizes}) == "x:f16[30,16]row w:f16[8,16]row bias:f16[8]row out:f16[30,8]row"
    assert key("hgemm", {"...": (2, 3), **sizes}) == "a:f16[6,5,16]row b:f16[6,16,8]row out:f16[6,5,8]row"
    assert key("hgemm", {"...": (1,), **sizes}) == "a:f16[5,16]row b:f16[16,8]row out:f16[5,8]row"


def rescaled(x: Tensor[f16, M, N], s: Tensor[f16, M, ceil_div(N, 4)]) -> Tensor[f16, M, N]:
    return x * repeat(s, 4, N)  # a scale for each four elements, and no product


def test_a_graph_that_no_family_serves() -> None:
    with pytest.raises(
        DefinitionError, match=r"no family serves rescaled with x: f16\[M, N\], .*; there are: .*elementwise"
    ):
        family_of(Operator(rescaled).graphs[0])


def test_families_have_names_of_their_own() -> None:
    gelu = operators()["gelu"].graphs[0]
    known = family_of(gelu)
    with pytest.raises(DefinitionError, match="a family named elementwise is registered already"):
        register_family(Family("elementwise", (), known.matches, known.normalise, known.dims, known.suites))
    assert set(schedules()) >= {"Elementwise", "MmaGemm", "SimtGemm"}


@pytest.mark.parametrize(
    "operand",
    [
        Operand("x", f16, (4, 8), (8, 1)),
        Operand("x", f16, (2, 4, 8), (32, 1, 4), 8),
        Operand("w_1", f32, (4, 8), (0, 3), 4),
        Operand("x", f32, (), ()),
        Operand("ids", f32, (5,), (2,), 2),
    ],
)
def test_an_operand_is_read_as_it_prints(operand):
    assert read_operand(str(operand)) == operand


@pytest.mark.parametrize(
    "text", ["", "x", "x:f16", "x:f16[4,8]", "x:f16[4,8]diagonal", "x:f17[4]row", "x:f16[a]row", "x:f16[4]row@"]
)
def test_what_prints_no_operand_is_refused(text):
    with pytest.raises(KgenError):
        read_operand(text)
