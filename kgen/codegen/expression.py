"""Expression graph to CUDA C++: the pointwise part of an operator as one device function of scalars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Location, walk
from kgen.dsl.ops import operand_dtypes
from kgen.dsl.ranges import never_negative
from kgen.dsl.types import DType, bool_, compute_dtype, f64, i8, i64


@dataclass(frozen=True)
class Call:
    """A pointwise node that is to be written: its operands in C++, the dtype it is computed in, whether it may approximate."""

    node: Expr
    operands: tuple[str, ...]
    dtype: DType
    fast: bool

    @property
    def f(self) -> str:
        """How CUDA's functions of this dtype end."""
        return "" if self.dtype is f64 else "f"


def _approximate(precise: str, fast: str) -> Callable[[Call], str]:
    """A function of floats that has a shorter form in f32."""
    return lambda c: (fast if c.fast else precise).format(*c.operands, f=c.f)


def _divided(sign: str, rounded_down: str) -> Callable[[Call], str]:
    def text(c: Call) -> str:
        a, b = c.operands
        found = f"{a} {sign} {b}" if all(map(never_negative, c.node.args)) else f"{rounded_down}({a}, {b})"
        sure = c.node.args[1].op in ("const", "size")
        return found if sure else f"{b} != 0 ? {found} : 0"  # what is loaded beyond the end is 0 too

    return text


def _extremum(sign: str) -> Callable[[Call], str]:
    def text(c: Call) -> str:
        a, b = c.operands
        return f"{a} {sign} {b} || {a} != {a} ? {a} : {b}" if c.dtype.is_float else f"{a} {sign} {b} ? {a} : {b}"

    return text


def _abs(c: Call) -> str:
    (x,) = c.operands
    return f"fabs{c.f}({x})" if c.dtype.is_float else f"{x} < 0 ? -{x} : {x}"


def _sigmoid(c: Call) -> str:
    (x,), one = c.operands, literal(1.0, c.dtype)
    return f"ptx::sigmoid_approximate({x})" if c.fast else f"{one} / ({one} + exp{c.f}(-{x}))"


def _reciprocal(c: Call) -> str:
    (x,) = c.operands
    return f"ptx::reciprocal_approximate({x})" if c.fast else f"{literal(1.0, c.dtype)} / {x}"


def _erfc(c: Call) -> str:
    (x,) = c.operands
    return f"erfc({x})" if c.dtype is f64 else f"erfc_{'short' if c.fast else 'approximate'}({x})"


def _quotient(c: Call) -> str:
    """By a number of all elements the product with its reciprocal: a division takes ten instructions and a branch."""
    (a, b), divisor = c.operands, c.node.args[1]
    if c.fast and divisor.op == "const" and _has_reciprocal(divisor.attr):
        return f"{a} * {literal(1 / divisor.attr, c.dtype)}"
    return f"{a} * ({literal(1.0, c.dtype)} / {b})" if c.fast and divisor.op == "scalar" else f"{a} / {b}"


def _has_reciprocal(value: float) -> bool:
    """Whether neither a number nor 1 over it is beyond f32's normal ones."""
    return 2.0**-126 <= abs(value) <= 2.0**126


_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&&", "or": "||"}
_INFIX |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_NAMED = ("log", "log2", "log1p", "sqrt", "rsqrt", "erf", "sin", "cos", "floor", "ceil")
#: CUDA C++ of every pointwise op: a text of its operands, where {f} is f in f32 and nothing in f64, or what writes one.
CUDA: dict[str, str | Callable[[Call], str]] = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in _INFIX.items()},
    **{op: f"{op}{{f}}({{0}})" for op in _NAMED},
    "floordiv": _divided("/", "floor_divide"),
    "mod": _divided("%", "floor_remainder"),
    "maximum": _extremum(">"),
    "minimum": _extremum("<"),
    "pow": "pow{f}({0}, {1})",
    "atan2": "atan2{f}({0}, {1})",
    "neg": "-{0}",
    "abs": _abs,
    "not": "!{0}",
    "where": "{0} ? {1} : {2}",
    "cast": "{0}",
    "exp": _approximate("exp{f}({0})", "ptx::exp_approximate({0})"),
    "exp2": _approximate("exp2{f}({0})", "ptx::exp2_approximate({0})"),
    "tanh": _approximate("tanh{f}({0})", "tanh_short({0})"),
    "div": _quotient,
    "expm1": _approximate("expm1{f}({0})", "expm1_short({0})"),
    "erfc": _erfc,
    "sigmoid": _sigmoid,
    "round": "rint{f}({0})",
    "reciprocal": _reciprocal,
}


@dataclass(frozen=True)
class Argument:
    """A parameter of the generated function: a leaf of the expression, its name and type."""

    node: Expr
    name: str
    dtype: DType


def pointwise_function(
    name: str, arguments: Sequence[Argument], results: Sequence[Expr], outputs: Sequence[DType], fast: bool
) -> str:
    """A `__device__` function `name(arguments..., outputs&...)` that evaluates `results` and rounds them to `outputs`.

    `fast` takes the hardware's approximations of exp, exp2, reciprocals and sigmoid's division (relative error about
    2^-21), reciprocals of divisors that are numbers, a shorter tanh (2^-20), erfc (2^-16) and expm1 (2^-18): right for
    results of 16 bits and less.
    """
    writer = _Writer({id(a.node): a for a in arguments}, fast)
    for result in results:
        writer.write(result)
    parameters = [f"{a.dtype.ctype} {a.name}" for a in arguments]
    parameters += [f"{t.ctype}& result{i}" for i, t in enumerate(outputs)]
    lines = [f"__device__ __forceinline__ void {name}({', '.join(parameters)}) {{", *writer.lines]
    for i, (result, dtype) in enumerate(zip(results, outputs)):
        lines.append(f"  result{i} = {convert(writer.names[id(result)], result.dtype, dtype)};")
    return "\n".join([*lines, "}"]) + "\n"


def convert(value: str, source: DType, target: DType) -> str:
    """C++ that converts `value`; equal C++ types need nothing. Floats to integers saturate, where C++ says nothing."""
    if source.ctype == target.ctype:
        return value
    if target is bool_:
        return f"static_cast<float>({value}) != 0" if source.is_float and source.bits < 32 else f"{value} != 0"
    if target.kind == "float" and target.bits < 32 and source.ctype != "float":
        value = f"static_cast<float>({value})"
    if source.is_float and source.bits < 32 and (target is f64 or target.kind == "int"):
        value = f"static_cast<float>({value})"
    if source.is_float and target.kind == "int":
        value = f"__{'double' if source is f64 else 'float'}2{'ll' if target is i64 else 'int'}_rz({value})"
        return f"static_cast<{target.ctype}>(max(-128, min(127, {value})))" if target is i8 else value
    return f"static_cast<{target.ctype}>({value})"


def literal(value: float | int | bool, dtype: DType) -> str:
    """A constant in C++, exact in its dtype."""
    if dtype is bool_:
        return "true" if value else "false"
    if not dtype.is_float:
        return f"{value}{'LL' if dtype is i64 else ''}"
    suffix = "" if dtype is f64 else "f"
    if not math.isfinite(value):  # by its bits: NVRTC has neither INFINITY nor NAN
        sign = "-" if value < 0 else ""
        if dtype is f64:
            return f"{sign}__longlong_as_double({'0x7ff8' if math.isnan(value) else '0x7ff0'}{'0' * 12}LL)"
        return f"{sign}__int_as_float({'0x7fc0' if math.isnan(value) else '0x7f80'}0000)"
    text = repr(float(value))
    return text + suffix if "." in text or "e" in text else f"{text}.0{suffix}"


def _quoted(file: str) -> str:
    """The name of a file between the quotes of a directive: what would end these, or the line, or escape, is a `_`."""
    return "".join(c if c.isprintable() and c not in '"\\' else "_" for c in file)


class _Writer:
    """Writes one statement a node, each after its arguments."""

    def __init__(self, leaves: Mapping[int, Argument], fast: bool) -> None:
        self.leaves = leaves
        self.fast = fast
        self.names: dict[int, str] = {}
        self.lines: list[str] = []
        self._last: Location | None = None
        self._numbers = itertools.count()

    def write(self, root: Expr) -> None:
        for node in walk_to(root, self.leaves):
            if id(node) in self.names:
                continue
            if id(node) in self.leaves:
                self.names[id(node)] = self.leaves[id(node)].name
            elif node.op == "const":
                self.names[id(node)] = literal(node.attr, node.dtype)
            else:
                self._statement(node)

    def _statement(self, node: Expr) -> None:
        computed = node.dtype if node.op == "cast" else compute_dtype(node.dtype)
        if node.where != self._last:
            self.lines.append(f'#line {node.where.line} "{_quoted(node.where.file)}"')
            self._last = node.where
        name = f"v{next(self._numbers)}"
        self.lines.append(f"  const {computed.ctype} {name} = {self._value(node)};")
        self.names[id(node)] = name

    def _operand(self, node: Expr, dtype: DType) -> str:
        source = self.leaves[id(node)].dtype if id(node) in self.leaves else node.dtype
        if node.op == "const" and dtype is not bool_:
            return literal(node.attr, dtype)
        return convert(self.names[id(node)], source, dtype)

    def _value(self, node: Expr) -> str:
        text = CUDA.get(node.op)
        if text is None:
            raise DefinitionError(f"{node.where}: {node.op} is not a pointwise operation")
        dtype = compute_dtype(node.dtype)
        operands = tuple(self._operand(x, t) for x, t in zip(node.args, operand_dtypes(node)))
        call = Call(node, operands, dtype, self.fast and dtype is not f64)
        return text.format(*operands, f=call.f) if isinstance(text, str) else text(call)


def walk_to(root: Expr, leaves: Mapping[int, Argument]) -> list[Expr]:
    """The nodes between the leaves and `root`, arguments first; what lies behind a leaf is left out."""
    needed = {id(root)}
    order = walk((root,))
    for node in reversed(order):
        if id(node) in needed and id(node) not in leaves:
            needed.update(id(a) for a in node.args)
    return [node for node in order if id(node) in needed]
