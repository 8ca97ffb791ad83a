"""The expression graph: inferred shapes and dtypes, and the message of every mistake, with its file and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from kgen.dsl import functions as F
from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Shape, cast, describe, matmul, reduction, walk, where
from kgen.dsl.external import external
from kgen.dsl.indexing import arange, random, scatter_add, size, take
from kgen.dsl.ops import FLOAT_FUNCTIONS
from kgen.dsl.size import Size, dims
from kgen.dsl.types import DTYPES, DType, bf16, bool_, e4m3, f16, f32, f64, i8, i32, i64

M, N, K = dims("M N K")


def tensor(dtype: DType, *shape: Size, name: str = "x", leading: bool = False) -> Expr:
    return Expr("input", (), dtype, Shape(shape, leading), name)


X = tensor(f16, M, N)
Y = tensor(f16, M, N, name="y")
ROW = tensor(f16, N, name="row")
COLUMN = tensor(f16, M, 1, name="column")
INTS = tensor(i32, M, N, name="ints")
BYTES = tensor(i8, M, N, name="bytes")
MASK = tensor(bool_, M, N, name="mask")
WIDE = tensor(f64, M, N, name="wide")
ANY = tensor(f16, N, name="any", leading=True)
IDS = tensor(i32, K, name="ids")
S = Expr("scalar", (), f32, Shape(), "s")


@pytest.mark.parametrize(
    ("make", "dtype", "shape"),
    [
        (lambda: X + Y, f32, "[M, N]"),
        (lambda: X + 1, f32, "[M, N]"),
        (lambda: 1.5 - X, f32, "[M, N]"),
        (lambda: X * ROW, f32, "[M, N]"),
        (lambda: X / COLUMN, f32, "[M, N]"),
        (lambda: ROW * COLUMN, f32, "[M, N]"),
        (lambda: X * S, f32, "[M, N]"),
        (lambda: WIDE + X, f64, "[M, N]"),
        (lambda: WIDE * 2, f64, "[M, N]"),
        (lambda: INTS + 1, i32, "[M, N]"),
        (lambda: INTS + 0.5, f32, "[M, N]"),
        (lambda: INTS + X, f32, "[M, N]"),
        (lambda: BYTES + BYTES, i32, "[M, N]"),
        (lambda: INTS / 2, f32, "[M, N]"),
        (lambda: -INTS, i32, "[M, N]"),
        (lambda: abs(BYTES), i32, "[M, N]"),
        (lambda: F.exp(INTS), f32, "[M, N]"),
        (lambda: F.sqrt(WIDE), f64, "[M, N]"),
        (lambda: X > 0, bool_, "[M, N]"),
        (lambda: X == Y, bool_, "[M, N]"),
        (lambda: (X > 0) & ~MASK | MASK, bool_, "[M, N]"),
        (lambda: where(MASK, X, 0), f32, "[M, N]"),
        (lambda: where(MASK, INTS, 0), i32, "[M, N]"),
        (lambda: where(ROW > 0, COLUMN, WIDE), f64, "[M, N]"),
        (lambda: cast(X, i8), i8, "[M, N]"),
        (lambda: cast(MASK, f16), f16, "[M, N]"),
        (lambda: X.T, f16, "[N, M]"),
        (lambda: X @ Y.T, f32, "[M, M]"),
        (lambda: matmul(X, Y.T, accumulate=f16), f32, "[M, M]"),
        (lambda: BYTES @ BYTES.T, i32, "[M, M]"),
        (lambda: F.sum(X), f32, "[M, 1]"),
        (lambda: F.mean(INTS), f32, "[M, 1]"),
        (lambda: F.amax(INTS), i32, "[M, 1]"),
        (lambda: F.sum(X, axis=None), f32, "[]"),
        (lambda: X - F.mean(X), f32, "[M, N]"),
        (lambda: ANY * ROW, f32, "[..., N]"),
        (lambda: F.sum(ANY), f32, "[..., 1]"),
        (lambda: F.clamp(X, -1, S), f32, "[M, N]"),
        (lambda: F.gelu(ANY), f32, "[..., N]"),
        (lambda: F.pow(INTS, 2), f32, "[M, N]"),
        (lambda: F.sum(X, axis=-2), f32, "[1, N]"),
        (lambda: F.mean(X, axis=(-1, -2)), f32, "[1, 1]"),
        (lambda: F.sum(ANY, axis=(-1,)), f32, "[..., 1]"),
        (lambda: F.argmax(X), i64, "[M, 1]"),
        (lambda: F.argmax(X, axis=None), i64, "[]"),
        (lambda: INTS // 2 + INTS % 3, i32, "[M, N]"),
        (lambda: arange(N) * size(M), i32, "[N]"),
        (lambda: X * arange(M, 1), f32, "[M, N]"),
        (lambda: take(X, IDS), f16, "[K, N]"),
        (lambda: take(X, IDS, axis=-1), f16, "[M, K]"),
        (lambda: take(X, INTS), f16, "[M, N, N]"),
        (lambda: scatter_add(K, IDS, 1), i32, "[K]"),
        (lambda: scatter_add(K, INTS, 1.0), f32, "[K]"),
        (lambda: scatter_add(M, IDS, tensor(f16, K, N)), f32, "[M, N]"),
        (lambda: scatter_add(M, IDS, tensor(f16, N, K), axis=1), f32, "[N, M]"),
        (lambda: F.swap_halves(ANY), f16, "[..., N]"),
        (lambda: F.dropout(ANY, 0.5, 1, 2), f32, "[..., N]"),
    ],
)
def test_shapes_and_dtypes(make: Callable[[], Expr], dtype: DType, shape: str) -> None:
    node = make()
    assert node.dtype is dtype
    assert str(node.shape) == shape
    assert (node.where.file, node.where.line) == ("tests/dsl/test_expressions.py", inspect.getsourcelines(make)[1])


def test_batches_of_matrices_broadcast() -> None:
    a = tensor(f16, M, K, name="a", leading=True)
    b = tensor(f16, K, N, name="b")
    assert str((a @ b).shape) == "[..., M, N]"
    heads = tensor(f16, 4, M, K, name="a") @ tensor(f16, 1, K, N, name="b")
    assert str(heads.shape) == "[4, M, N]"


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: X + tensor(f16, K, name="k"), "shapes do not broadcast at axis -1: x: f16[M, N] and k: f16[K]; expected equal"),
    (lambda: X + X.T, "shapes do not broadcast at axis -2: x: f16[M, N] and transpose: f16[N, M]"),
    (lambda: ANY + X, "cannot tell how any: f16[..., N] lines up with 2 named dimensions; name its last 2"),
    (lambda: MASK + 1, "add of a bool: mask: bool[M, N]; use where(...) or cast(...)"),
    (lambda: F.exp(MASK), "exp of a bool: mask: bool[M, N]; use where(...) or cast(...)"),
    (lambda: MASK == X, "comparison of a bool with a number: mask: bool[M, N] and x: f16[M, N]"),
    (lambda: X & MASK, "logical and expects bool, got x: f16[M, N]; compare it first, for example x != 0"),
    (lambda: where(X, X, Y), "where expects a bool condition, got x: f16[M, N]"),
    (lambda: where(True, X, Y), "where expects a bool condition, got True"),
    (lambda: where(MASK, MASK, X), "where of a bool and a number: mask: bool[M, N] and x: f16[M, N]"),
    (lambda: cast(X, "f32"), "cast expects a dtype such as f16, got 'f32'"),
    (lambda: X + "1", "expected a traced tensor or a number, got str '1'"),
    (lambda: X @ 2, "@ expects two matrices, got 2 on the right"),
    (lambda: ROW @ X, "@ expects two matrices, got row: f16[N] on the left"),
    (lambda: X @ tensor(bf16, N, K, name="b"), "@ expects operands of one number dtype, got x: f16[M, N] and b: bf16[N, K]"),
    (lambda: MASK @ MASK.T, "@ expects operands of one number dtype, got mask: bool[M, N] and transpose: bool[N, M]; cast one"),
    (lambda: X @ Y, "@ contracts N of x: f16[M, N] with M of y: f16[M, N]; expected equal"),
    (lambda: matmul(X, Y.T, accumulate=i32), "@ of f16 cannot accumulate in i32"),
    (lambda: matmul(X, Y.T, accumulate=e4m3), "@ of f16 cannot accumulate in e4m3"),
    (lambda: ROW.T, ".T needs at least two named dimensions, got row: f16[N]"),
    (lambda: reduction("sum", MASK, -1), "sum expects a tensor of numbers, got mask: bool[M, N]"),
    (lambda: F.sum(2), "sum expects a tensor of numbers, got 2"),
    (lambda: F.mean(X, axis=0), "mean over axis 0; expected negative axes such as -1 (rows) or (-3, -1), or None (all)"),
    (lambda: F.sum(X, axis=(-3, -1)), "sum over axis -3 of x: f16[M, N], which names no dimension there"),
    (lambda: F.argmax(X, axis=-2), "argmax over axis -2; expected -1 (rows) or None (all)"),
    (lambda: X // 2, "floordiv expects ints, got x: f16[M, N] and const: f32[]; use floor(a / b)"),
    (lambda: arange(N, 2), "arange expects a dimension and then ones, got N, 2"),
    (lambda: size(3), "size expects a dimension, got 3"),
    (lambda: take(X, ROW), "take expects ids of an int dtype, got row: f16[N]"),
    (lambda: take(X, INTS, axis=2), "take along axis 2 of x: f16[M, N]; expected one of its 2 named dimensions"),
    (lambda: scatter_add(K, IDS, X), "scatter_add of x: f16[M, N] along axis 0 at ids: i32[K]; expected one id an index"),
    (lambda: scatter_add(4, IDS, 1), "scatter_add expects a dimension of the result, got 4"),
    (lambda: scatter_add(N, IDS, 1, accumulate=f16), "scatter_add of const: i32[] cannot accumulate in f16"),
    (lambda: F.swap_pairs(S + 1), "exchange of pairs expects a tensor, got add: f32[]"),
    (lambda: random(X, 0.5, 1), "random expects ids of an int dtype, got const: f32[]"),
    (lambda: F.sum(S), "sum over the last axis of s: f32[], which names no dimension"),
    (lambda: bool(X > 0), "a traced value has no truth value yet; use where(condition, a, b) instead of if, and, or, not"),
    (lambda: 0 if X else 1, "a traced value has no truth value yet"),
    (lambda: float(X), "a traced value is not a number yet; use the functions of kgen instead of those of math or numpy"),
    (lambda: int(X), "a traced value is not a number yet"),
    (lambda: list(X), "a traced tensor cannot be iterated over or unpacked"),
    (lambda: X[0], "indexing a traced tensor is not supported"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number: int) -> None:
    make, told = MISTAKES[number]
    with pytest.raises(DefinitionError) as error:
        make()
    line = inspect.getsourcelines(make)[1]
    assert str(error.value).startswith(f"tests/dsl/test_expressions.py:{line}: {told}")


def test_a_number_takes_the_kind_of_what_it_meets() -> None:
    for like, number, dtype, value in [
        (X, 2, f32, 2.0),
        (INTS, 2, i32, 2),
        (INTS, 2.5, f32, 2.5),
        (WIDE, 2, f64, 2.0),
        (tensor(i64, N), 2, i64, 2),
    ]:
        constant = (like + number).args[1]
        assert constant.dtype is dtype
        assert constant.attr == value
        assert type(constant.attr) is type(value)


def test_the_kind_of_a_constant_that_leads() -> None:
    assert (2 - INTS).dtype is i32
    assert [a.op for a in (2 - INTS).args] == ["const", "input"]


def test_functions_cover_what_activations_are_made_of() -> None:
    x = tensor(f16, N)
    for name in sorted(FLOAT_FUNCTIONS):
        node = getattr(F, name)(x)
        assert (node.op, node.dtype) == (name, f32)
        assert getattr(F, name).__doc__
    for name in ("relu", "silu", "gelu", "gelu_erf", "quick_gelu", "elu", "hardswish", "hardshrink"):
        assert str(getattr(F, name)(x).shape) == "[N]"


def test_walk_lists_arguments_before_their_users_and_each_once() -> None:
    shared = F.exp(X)
    root = shared * shared + (shared - Y)
    order = walk((root, shared))
    assert len(order) == len({id(node) for node in order}) == 6
    for index, node in enumerate(order):
        assert all(any(arg is earlier for earlier in order[:index]) for arg in node.args)


def test_deep_expressions_do_not_exhaust_the_stack() -> None:
    node = X
    for _ in range(5000):
        node = node + 1
    assert len(walk((node,))) == 10001


def first_of(x: object) -> tuple[object, ...]:
    return (x,)


def test_a_computation_that_no_graph_expresses_has_a_node_a_result() -> None:
    kept, count = external("nms", [(i64, (N,)), (i32, ())], X, 0.5, reference=first_of)
    assert (str(kept.shape), str(count.shape), kept.dtype, count.dtype) == ("[N]", "[]", i64, i32)
    assert [repr(node.attr) for node in (kept, count)] == ["nms.0", "nms.1"]
    assert kept.args[0] is X
    assert kept.attr.reference is first_of


def test_an_axis_or_a_tuple_of_it_is_one_thing() -> None:
    assert F.sum(X, axis=(-1,)).attr == F.sum(X).attr == -1
    assert F.sum(X, axis=(-1, -2)).attr == (-2, -1)
    assert F.sum(X, axis=-2).attr == (-2,)


def test_nodes_are_frozen_and_described() -> None:
    with pytest.raises(AttributeError):
        X.op = "other"  # type: ignore[misc]
    assert describe(F.exp(X)) == "exp: f32[M, N]"
    assert describe(S) == "s: f32[]"
    assert len(DTYPES) == 11
