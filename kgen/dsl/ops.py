"""The ops of expression graphs: what each of them means, a row an op.

Whoever asks something of a node asks its row, so that an op that is added here is known everywhere:

| question | asked by | in the row |
|---|---|---|
| is it a leaf, pointwise, a product, a reduction, a scan, a move of elements? | families, gate, models, export | `kind` |
| which dtypes does it take, and in which are they read? which has its result? | tracing, CUDA, float64 | `takes`, `gives` |
| what is an operand to it: an element, a factor, a table read at ids? | operands, bytes moved, far problems | `roles` |
| is a result exact, or a value of its operands? | gate, float64 | `exactness` |
| does it add up terms, and in what dtype? may they cancel? | gate, operands, export | `sums`, `accumulator`, `cancels` |
| does it multiply terms, of which some may overflow in another order? | gate | `multiplies` |
| does it depend on where an element stands, or on how many there are? | far problems | `positional` |
| may its operands change places? | patterns of libraries' calls | `commutes` |
| can it be below 0, does it ever fall? | ids of gathers | `sign`, `rises` |

What an op is in CUDA C++, in float64, in torch and in plain C++ stands in a table by name beside those who write it:
`kgen.codegen.expression.CUDA`, `kgen.numerics.values.VALUES`, `kgen.bench.eager.CALLS`, `kgen.export.reference.PLAIN`. A
test holds that each has all ops, or says why not. A family that looks for a pattern of its own may compare names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from kgen.dsl.size import Size
from kgen.dsl.types import DType, bool_, compute_dtype, f32, i64, promote

#: leaf: given with a call or the definition; scan: of each element and all before it along the last axis; move: elements of its
#: operand at other places; position: computed of an element's place or of sizes; scatter: terms added at places that ids name.
Kind = Literal["leaf", "pointwise", "product", "reduction", "scan", "move", "position", "scatter", "external"]

#: What an operand is to the op. All of it is read, but of a `table` just what the `ids` name, and of the `matrices` of groups
#: just those of groups with rows, which the `offsets` say. `seed` and `offset` are single numbers.
Role = Literal[
    "element", "left", "right", "matrices", "offsets", "terms", "moved", "table", "ids", "added", "seed", "offset"
]

#: numbers: no bools; ints: neither floats; alike: both numbers or both bools; choice: a bool, and two that are alike.
Takes = Literal["numbers", "ints", "alike", "bools", "choice", "any"]

#: promoted: the widest operand's; float: f32 where that is no float; index: i64; own: what the definition says.
Gives = Literal["promoted", "float", "bool", "index", "own"]

#: moved: a value of an operand; cast: that, rounded to the node's dtype; chosen: a value of an operand, or its negative;
#: exact: wherever the result is representable; rounded: none of these. Integers and bools are never rounded.
Exactness = Literal["moved", "cast", "chosen", "exact", "rounded"]


class Node(Protocol):
    """What rows need to know of a node: kgen.dsl.expr.Expr has it."""

    @property
    def op(self) -> str: ...
    @property
    def args(self) -> Sequence[Node]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> Any: ...
    @property
    def attr(self) -> Any: ...


#: Whether a node is surely not below 0, from whether its operands are.
Sign = Callable[[Node, Sequence[bool]], bool]


def _any_sign(node: Node, operands: Sequence[bool]) -> bool:
    return False


def _of_all(node: Node, operands: Sequence[bool]) -> bool:
    return all(operands)


def _of_any(node: Node, operands: Sequence[bool]) -> bool:
    return any(operands)


def _of_floats(node: Node, operands: Sequence[bool]) -> bool:
    return node.dtype.is_float and all(operands)  # integers may overflow


def _of_wide(node: Node, operands: Sequence[bool]) -> bool:
    return node.dtype.bits >= 32 and all(operands)


def _of_float(node: Node, operands: Sequence[bool]) -> bool:
    return node.dtype.is_float


def _of_value(node: Node, operands: Sequence[bool]) -> bool:
    return bool(node.attr >= 0)


@dataclass(frozen=True)
class Op:
    """What an op means. `roles`: one an operand, empty where there are none or any number (external).

    `takes` and `gives` are for pointwise ops, reductions and scans. `sums`: the result is a sum of terms, or a multiple of one,
    which floats give otherwise in another order; `multiplies`: a product of them. `cancels`: large operands may leave a small
    result. `rises`: the operands with which the result never falls, where the others rest and are not below 0.
    """

    name: str
    kind: Kind
    roles: tuple[Role, ...] = ()
    exactness: Exactness = "rounded"
    takes: Takes = "any"
    gives: Gives = "own"
    sums: bool = False
    multiplies: bool = False
    cancels: bool = False
    commutes: bool = False
    positional: bool = False
    sign: Sign = _any_sign
    rises: tuple[int, ...] = ()

    @property
    def is_function(self) -> bool:
        """Whether it is a function of one float."""
        return self.kind == "pointwise" and len(self.roles) == 1 and self.gives == "float"

    @property
    def keeps(self) -> bool:
        """Whether its values are those of its operands, or of a call, of whatever range they are."""
        return self.exactness in ("moved", "cast") or self.kind == "external"

    def result(self, *operands: DType) -> DType:
        """The dtype of the result for operands of these dtypes; not for those that say it themselves."""
        if self.gives == "bool":
            return bool_
        if self.gives == "index":
            return i64
        dtype = functools.reduce(promote, operands) if len(operands) > 1 else compute_dtype(operands[0])
        return f32 if self.gives == "float" and not dtype.is_float else dtype


def _elements(count: int) -> tuple[Role, ...]:
    one: Role = "element"
    return (one,) * count


def _numbers(name: str, count: int, exactness: Exactness, gives: Gives = "promoted", **more: Any) -> Op:
    """Arithmetic, element by element."""
    return Op(name, "pointwise", _elements(count), exactness, **{"takes": "numbers", "gives": gives, **more})


def _function(name: str, exactness: Exactness = "rounded", **more: Any) -> Op:
    """A function of one float; ints are taken to f32 first."""
    return _numbers(name, 1, exactness, "float", **more)


def _bools(name: str, count: int, takes: Takes) -> Op:
    return Op(name, "pointwise", _elements(count), "exact", takes, "bool", commutes=name in ("and", "or", "eq", "ne"))


def _reduction(name: str, exactness: Exactness, gives: Gives = "promoted", sums: bool = False) -> Op:
    return Op(name, "reduction", ("terms",), exactness, "numbers", gives, sums)


def _scan(name: str, exactness: Exactness, gives: Gives = "promoted", **more: Any) -> Op:
    return Op(name, "scan", ("terms",), exactness, "numbers", gives, **more)


_BOTH = (0, 1)

#: All ops, by name.
OPS: dict[str, Op] = {
    op.name: op
    for op in (
        # Leaves.
        Op("input", "leaf", (), "moved"),
        Op("scalar", "leaf", (), "moved"),
        Op("const", "leaf", (), "moved", sign=_of_value),
        # Arithmetic.
        _numbers("add", 2, "exact", cancels=True, commutes=True, sign=_of_floats, rises=_BOTH),
        _numbers("sub", 2, "exact", cancels=True),
        _numbers("mul", 2, "exact", commutes=True, sign=_of_floats, rises=_BOTH),
        _numbers("div", 2, "rounded", "float", sign=_of_all, rises=(0,)),
        _numbers("floordiv", 2, "exact", takes="ints", sign=_of_all, rises=(0,)),
        _numbers("mod", 2, "exact", takes="ints", sign=_of_all),
        _numbers("pow", 2, "rounded", "float"),
        _numbers("atan2", 2, "rounded", "float"),
        _numbers("maximum", 2, "chosen", commutes=True, sign=_of_any, rises=_BOTH),
        _numbers("minimum", 2, "chosen", commutes=True, sign=_of_all, rises=_BOTH),
        _numbers("neg", 1, "chosen"),
        _numbers("abs", 1, "chosen", sign=_of_float),
        # Functions of one float.
        *(_function(name, sign=_of_float) for name in ("exp", "exp2", "erfc", "sigmoid")),
        *(_function(name, sign=_of_all) for name in ("sqrt", "rsqrt")),  # else NaN
        *map(_function, ("expm1", "log", "log2", "log1p", "tanh", "erf", "sin", "cos")),
        _function("floor", "exact", sign=_of_all, rises=(0,)),
        _function("ceil", "exact"),
        _function("round", "exact"),
        _function("reciprocal"),
        # Bools, choices, conversions.
        *(_bools(name, 2, "alike") for name in ("lt", "le", "gt", "ge", "eq", "ne")),
        _bools("and", 2, "bools"),
        _bools("or", 2, "bools"),
        _bools("not", 1, "bools"),
        Op("where", "pointwise", _elements(3), "moved", "choice"),
        Op("cast", "pointwise", ("element",), "cast", sign=_of_wide, rises=(0,)),
        # Products.
        Op("matmul", "product", ("left", "right"), "exact", sums=True),
        Op("grouped_matmul", "product", ("left", "matrices", "offsets"), "exact", sums=True, positional=True),
        # Reductions.
        _reduction("sum", "exact", sums=True),
        _reduction("mean", "rounded", "float", sums=True),
        _reduction("amax", "chosen"),
        _reduction("amin", "chosen"),
        _reduction("argmax", "exact", "index"),
        # Scans.
        _scan("cumsum", "exact", sums=True),
        _scan("cumprod", "rounded", multiplies=True),
        _scan("logcumsumexp", "rounded", "float"),
        # Moves, positions, and what is found or added by index.
        Op("transpose", "move", ("moved",), "moved"),
        Op("exchange", "move", ("moved",), "moved"),
        Op("repeat", "move", ("moved",), "moved"),
        Op("take", "move", ("table", "ids"), "moved"),
        Op("arange", "position", (), "exact", positional=True, sign=_of_all),
        Op("size", "position", (), "exact", positional=True, sign=_of_all),
        Op("random", "position", ("seed", "offset"), "exact"),
        Op("scatter_add", "scatter", ("ids", "added"), "exact", sums=True, positional=True),
        Op("external", "external", positional=True),
    )
}


def _of_kind(*kinds: Kind) -> frozenset[str]:
    return frozenset(name for name, op in OPS.items() if op.kind in kinds)


#: What is given with a call, or stands in the definition; and of that the single numbers.
LEAVES = _of_kind("leaf")
NUMBERS = LEAVES - {"input"}
POINTWISE = _of_kind("pointwise")
PRODUCTS = _of_kind("product")
REDUCTIONS = _of_kind("reduction")
SCANS = _of_kind("scan")
MOVES = _of_kind("move")
#: Those whose result is of several terms.
CONTRACTIONS = _of_kind("product", "reduction", "scan", "scatter")
#: Those that add up terms.
SUMS = frozenset(name for name, op in OPS.items() if op.sums)
#: Functions of one float, in the order of their rows.
FLOAT_FUNCTIONS = [name for name, op in OPS.items() if op.is_function]


def operand_dtypes(node: Node) -> tuple[DType, ...]:
    """The dtypes that a pointwise node reads its operands in."""
    takes = OPS[node.op].takes
    if takes == "choice":
        return (bool_, node.dtype, node.dtype)
    if takes == "any":
        return (node.dtype,)
    dtype = bool_ if takes == "bools" else _common(node) if takes == "alike" else compute_dtype(node.dtype)
    return (dtype,) * len(node.args)


def _common(node: Node) -> DType:
    """The dtype in which operands are compared."""
    dtypes = [compute_dtype(x.dtype) for x in node.args]
    if dtypes[0] is bool_:
        return bool_
    return max([t for t in dtypes if t.is_float] or dtypes, key=lambda t: t.bits)


def accumulator(node: Node) -> DType:
    """The dtype that a node's terms are added up, or compared, in; of other nodes, that they are computed in."""
    row = OPS[node.op]
    if row.kind == "product":
        return cast(DType, node.attr)
    if row.kind == "scatter":
        return cast(DType, node.attr[2])
    return compute_dtype(node.args[0].dtype if row.gives == "index" else node.dtype)


def indexed(node: Node) -> Size:
    """The size of the axis that a node's ids are of."""
    size: Size = node.attr[0] if OPS[node.op].kind == "scatter" else node.args[0].shape.dims[node.attr]
    return size


def roles_in(user: Node, operand: Node) -> set[Role]:
    """What one node is to another; nothing where it is no operand of it."""
    return {role for x, role in zip(user.args, OPS[user.op].roles) if x is operand}


def operands_as(node: Node, role: Role) -> list[Any]:
    """The operands of a node that have this role to it."""
    return [x for x, own in zip(node.args, OPS[node.op].roles) if own == role]
