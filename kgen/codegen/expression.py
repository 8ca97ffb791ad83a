"""Expression graph to CUDA C++: the pointwise part of an operator as one device function of scalars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Location, walk
from kgen.dsl.types import DType, bool_, compute_dtype, f64, i32, i64

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFIX |= {"floordiv": "/", "mod": "%"}
_INFIX |= {"eq": "==", "ne": "!=", "and": "&&", "or": "||"}
_CALLS = {"exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt"}
_CALLS |= {"rsqrt", "tanh", "erf", "erfc", "sin", "cos", "floor", "ceil"}


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

    `fast` takes the hardware's approximations of exp and of sigmoid's division (relative error about 2^-21), a shorter
    erfc (2^-16) and a shorter expm1 (2^-18): right for results of 16 bits and less.
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
    """C++ that converts `value`; equal C++ types need nothing."""
    if source.ctype == target.ctype:
        return value
    if target is bool_:
        return f"static_cast<float>({value}) != 0" if source.is_float and source.bits < 32 else f"{value} != 0"
    if target.kind == "float" and target.bits < 32 and source.ctype != "float":
        value = f"static_cast<float>({value})"
    if target.kind == "int" and source.kind == "float" and source.bits < 32:
        value = f"static_cast<float>({value})"
    if target is f64 and source.is_float and source.bits < 32:
        value = f"static_cast<float>({value})"
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
        op = node.op
        if op == "cast":
            return self._operand(node.args[0], node.dtype)
        if op == "where":
            c, a, b = node.args
            return f"{self._operand(c, bool_)} ? {self._operand(a, node.dtype)} : {self._operand(b, node.dtype)}"
        if op in ("and", "or", "not"):
            parts = [self._operand(a, bool_) for a in node.args]
            return f"!{parts[0]}" if op == "not" else f"{parts[0]} {_INFIX[op]} {parts[1]}"
        if op in ("lt", "le", "gt", "ge", "eq", "ne"):
            common = _common(node)
            left, right = (self._operand(x, common) for x in node.args)
            return f"{left} {_INFIX[op]} {right}"
        dtype = compute_dtype(node.dtype)
        args = [self._operand(x, dtype) for x in node.args]
        f = "" if dtype is f64 else "f"
        fast = self.fast and dtype is not f64
        if op in ("floordiv", "mod") and node.args[1].op not in ("const", "size"):
            return f"{args[1]} != 0 ? {args[0]} {_INFIX[op]} {args[1]} : 0"  # what is loaded beyond the end is 0 too
        if op in _INFIX:
            return f"{args[0]} {_INFIX[op]} {args[1]}"
        if op in ("maximum", "minimum"):
            sign = ">" if op == "maximum" else "<"
            x, y = args
            return f"{x} {sign} {y} || {x} != {x} ? {x} : {y}" if dtype.is_float else f"{x} {sign} {y} ? {x} : {y}"
        if op == "neg":
            return f"-{args[0]}"
        if op == "abs":
            return f"fabs{f}({args[0]})" if dtype.is_float else f"{args[0]} < 0 ? -{args[0]} : {args[0]}"
        if op == "sigmoid":
            if fast:
                return f"ptx::sigmoid_approximate({args[0]})"
            one = literal(1.0, dtype)
            return f"{one} / ({one} + exp{f}(-{args[0]}))"
        if op == "reciprocal":
            return f"{literal(1.0, dtype)} / {args[0]}"
        if op == "round":
            return f"rint{f}({args[0]})"
        if op == "pow":
            return f"pow{f}({args[0]}, {args[1]})"
        if op == "exp" and fast:
            return f"ptx::exp_approximate({args[0]})"
        if op == "erfc" and dtype is not f64:
            return f"erfc_{'short' if fast else 'approximate'}({args[0]})"
        if op == "expm1" and fast:
            return f"expm1_short({args[0]})"
        if op in _CALLS:
            return f"{op}{f}({args[0]})"
        raise DefinitionError(f"{node.where}: {op} is not a pointwise operation")


def _common(node: Expr) -> DType:
    a, b = (compute_dtype(x.dtype) for x in node.args)
    if a is bool_:
        return bool_
    floats = [t for t in (a, b) if t.is_float]
    wider = floats or [a, b]
    return max(wider, key=lambda t: t.bits) if wider else i32


def walk_to(root: Expr, leaves: Mapping[int, Argument]) -> list[Expr]:
    """The nodes between the leaves and `root`, arguments first; what lies behind a leaf is left out."""
    needed = {id(root)}
    order = walk((root,))
    for node in reversed(order):
        if id(node) in needed and id(node) not in leaves:
            needed.update(id(a) for a in node.args)
    return [node for node in order if id(node) in needed]
