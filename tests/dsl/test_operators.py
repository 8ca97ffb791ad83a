"""Operators: what a signature may say, what tracing checks, and a digest that is the meaning's alone."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest

from kgen.dsl import functions as F
from kgen.dsl.errors import ArgumentError, DefinitionError
from kgen.dsl.expr import cast
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, bool_, dtype_var, f16, f32, f64, i32
from kgen.ops import operators

M, N, K = dims("M N K")
T = dtype_var("T", f16, bf16, f32)
U = dtype_var("U", f16, f32)


def fused(
    x: Tensor[T, ..., M, K], w: Tensor[T, N, K], b: Tensor[T, N], alpha: float = 2.0, n: int = 3
) -> Tensor[T, ..., M, N]:
    """A docstring."""
    return alpha * (x @ w.T) + b * n


def test_a_signature() -> None:
    op = Operator(fused)
    assert op.name == "fused"
    assert op.__doc__ == "A docstring."
    assert [g.inputs[0].dtype for g in op.graphs] == [f16, bf16, f32]
    graph = op.graphs[0]
    assert list(map(str, graph.inputs)) == ["x: f16[..., M, K]", "w: f16[N, K]", "b: f16[N]"]
    assert list(map(str, graph.outputs)) == ["out: f16[..., M, N]"]
    assert [(s.name, s.dtype, s.default) for s in graph.scalars] == [("alpha", f32, 2.0), ("n", i32, 3)]
    assert graph.dims == ("M", "K", "N")
    assert str(op.where).startswith("tests/dsl/test_operators.py:")


def test_graphs_are_found_by_dtype() -> None:
    op = Operator(fused)
    assert op.graph({"x": bf16}) is op.graphs[1]
    assert op.graph({"out": f32}) is op.graphs[2]
    assert op.graph({}) is op.graphs[0]
    with pytest.raises(
        ArgumentError, match=r"fused got dtypes x: f64; expected one of: x: bf16, w: bf16, b: bf16; x: f16"
    ):
        op.graph({"x": f64})
    with pytest.raises(ArgumentError, match="fused got dtypes x: f16, w: f32"):
        op.graph({"x": f16, "w": f32})


def two_variables(x: Tensor[T, N], y: Tensor[U, N]) -> Tensor[U, N]:
    return x + y


def test_every_combination_of_dtypes_has_its_graph() -> None:
    op = Operator(two_variables)
    found = [(g.inputs[0].dtype, g.inputs[1].dtype, g.outputs[0].dtype) for g in op.graphs]
    assert found == [(t, u, u) for t in T.choices for u in U.choices]


def several(x: Tensor[f16, M, N]) -> tuple[Tensor[f16, M, N], Tensor[f32, M, 1], Tensor[f32, M], Tensor[bool_, M, N]]:
    return F.exp(x), F.sum(x), F.amax(x), x > 0


def test_several_outputs() -> None:
    graph = Operator(several).graphs[0]
    assert list(map(str, graph.outputs)) == [
        "out0: f16[M, N]",
        "out1: f32[M, 1]",
        "out2: f32[M]",
        "out3: bool[M, N]",
    ]
    assert [r.op for r in graph.results] == ["exp", "sum", "amax", "gt"]


def constant_result(x: Tensor[f32, N]) -> Tensor[f32, N]:
    return 1.0


def test_a_result_may_broadcast_to_what_is_declared() -> None:
    assert Operator(constant_result).graphs[0].results[0].op == "const"


def undefined_name(x: Tensor[f32, NOWHERE]) -> Tensor[f32, N]:  # type: ignore[name-defined]  # noqa: F821
    return x


def no_annotation(x) -> Tensor[f32, N]:  # type: ignore[no-untyped-def]
    return x


def text_annotation(x: str) -> Tensor[f32, N]:
    return x  # type: ignore[return-value]


def no_result(x: Tensor[f32, N]):  # type: ignore[no-untyped-def]
    return x


def variadic(*x: Tensor[f32, N]) -> Tensor[f32, N]:
    return x[0]


def number_first(a: float, x: Tensor[f32, N]) -> Tensor[f32, N]:
    return x


def no_tensor(a: float) -> Tensor[f32, N]:
    return a  # type: ignore[return-value]


def too_many(x: Tensor[f32, N]) -> Tensor[f32, N]:
    return x, x  # type: ignore[return-value]


def other_shape(x: Tensor[f32, M, N]) -> Tensor[f32, N, M]:
    return x


def not_leading(x: Tensor[f32, ..., N]) -> Tensor[f32, N]:
    return x


def float_to_int(x: Tensor[f32, N]) -> Tensor[i32, N]:
    return x + 1


def bool_to_float(x: Tensor[f32, N]) -> Tensor[f32, N]:
    return x > 0


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (undefined_name, "undefined_name: annotation uses 'NOWHERE', which is not defined at module level"),
        (no_annotation, "no_annotation: operand x is annotated with nothing; expected Tensor[...], float, int or i64"),
        (text_annotation, "text_annotation: operand x is annotated with <class 'str'>; expected Tensor[...], float, int or i64"),
        (no_result, "no_result: the result needs the annotation -> Tensor[...], got"),
        (variadic, "variadic: *x is not supported; name every operand"),
        (number_first, "number_first: tensor x follows a number; tensors come first"),
        (no_tensor, "no_tensor takes no tensor; an operator needs at least one"),
        (too_many, "too_many returns 2 values; annotated: 1"),
        (other_shape, "shapes do not broadcast at axis -2: out: f32[N, M] and x: f32[M, N]; expected equal sizes or 1"),
        (not_leading, "not_leading computes x: f32[..., N], declared is out: f32[N]; shapes differ"),
        (float_to_int, "float_to_int computes add: f32[N], declared is out: i32[N]; use cast(..., i32)"),
        (bool_to_float, "bool_to_float computes gt: bool[N], declared is out: f32[N]; use cast(..., f32)"),
    ],
)  # fmt: skip
def test_what_a_definition_must_not_be(function: Callable[..., object], told: str) -> None:
    with pytest.raises(DefinitionError) as error:
        _ = Operator(function).graphs
    assert told in str(error.value)
    assert str(error.value).startswith("tests/dsl/test_operators.py:")


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ("f16", "Tensor[...] starts with a dtype such as f16 or a dtype variable, got 'f16'"),
        ((M, N), "Tensor[...] starts with a dtype such as f16 or a dtype variable, got M"),
        ((f16, "M"), "is a name from dims(...), a size made of them, or a positive int, got 'M'"),
        ((f16, 0), "a size made of them, or a positive int, got 0"),
        ((f16, M, ...), "a size made of them, or a positive int, got Ellipsis"),
        ((f16, 1.5), "a size made of them, or a positive int, got 1.5"),
    ],
)
def test_what_a_tensor_must_not_be(item: object, told: str) -> None:
    with pytest.raises(DefinitionError) as error:
        Tensor[item]
    assert told in str(error.value)


def one_way(x: Tensor[f32, N]) -> Tensor[f16, N]:
    return x * 2 + 1


def same_on_other_lines(x: Tensor[f32, N]) -> Tensor[f16, N]:
    y = x * 2
    return y + 1


def test_a_digest_is_the_meanings() -> None:
    digest = Operator(one_way, "op").graphs[0].digest
    assert digest == Operator(same_on_other_lines, "op").graphs[0].digest
    assert len(digest) == 16

    def other_constant(x: Tensor[f32, N]) -> Tensor[f16, N]:
        return x * 2 + 2

    def other_dtype(x: Tensor[f16, N]) -> Tensor[f16, N]:
        return x * 2 + 1

    def other_rounding(x: Tensor[f32, N]) -> Tensor[f16, N]:
        return cast(x * 2, f16) + 1

    others = [Operator(f, "op").graphs[0].digest for f in (other_constant, other_dtype, other_rounding)]
    others.append(Operator(one_way, "renamed").graphs[0].digest)
    assert len({digest, *others}) == 5


def test_digests_are_the_same_in_every_process() -> None:
    program = "from kgen.ops import operators\nprint(*(g.digest for o in operators().values() for g in o.graphs))"
    here = [g.digest for o in operators().values() for g in o.graphs]
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split() == here


def test_graphs_travel_to_other_processes() -> None:
    graph = Operator(fused).graphs[1]
    back = pickle.loads(pickle.dumps(graph))
    assert back.digest == graph.digest
    assert back.inputs == graph.inputs
    assert back.inputs[0].dtype is bf16
    assert [n.op for n in back.nodes] == [n.op for n in graph.nodes]
