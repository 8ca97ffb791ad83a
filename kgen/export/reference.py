"""An operator as plain C++ in double precision: what the exported test compares with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import REDUCTIONS, Expr
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim
from kgen.dsl.types import bool_, f32, f64

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFIX |= {"eq": "==", "ne": "!=", "and": "&&", "or": "||"}
_STD = {"exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "pow"}
_FORMS = {
    "neg": "-{0}",
    "not": "!{0}",
    "abs": "std::fabs({0})",
    "rsqrt": "1.0 / std::sqrt({0})",
    "reciprocal": "1.0 / {0}",
    "sigmoid": "1.0 / (1.0 + std::exp(-{0}))",
    "round": "std::nearbyint({0})",
    "where": "{0} ? {1} : {2}",
    "maximum": "{0} > {1} || std::isnan({0}) ? {0} : {1}",
    "minimum": "{0} < {1} || std::isnan({0}) ? {0} : {1}",
}


def reference(problem: Problem, output: int) -> str:
    """The statements that compute element `at[0], at[1], ...` of an output and return it as a double.

    Tensors are called with an index, `x(at[0], at[1])`, and have `x.size(axis)`; scalars are variables. Raises
    DefinitionError for an operation that has no such form.
    """
    writer = _Writer(problem)
    rank = len(problem.outputs[output].shape)
    result = problem.graph.results[output]
    index = [f"at[{axis}]" for axis in range(rank)]
    spec = problem.graph.outputs[output]
    named = len(spec.shape.dims)
    if len(result.shape.dims) == named + 1:  # a row reduction whose last axis of size 1 the signature leaves out
        index.append("0")
    value = writer.value(result, writer.fit(index, spec.shape.leading, result))
    return "\n".join([*writer.lines, f"  return {value};"])


class _Writer:
    """Writes one statement a node and index, arguments first; sums open a loop of their own."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.graph: Graph = problem.graph
        self.lines: list[str] = []
        self.known: dict[tuple[int, tuple[str, ...]], str] = {}
        self.outside: list[dict[tuple[int, tuple[str, ...]], str]] = []
        self.indent = "  "
        self.count = {"v": 0, "k": 0}
        self.taken = {s.name for s in self.graph.inputs} | {s.name for s in self.graph.scalars}

    def value(self, node: Expr, index: Sequence[str]) -> str:
        """The C++ variable or literal of a node at an index over its own axes."""
        key = (id(node), tuple(index))
        if key not in self.known:
            self.known[key] = self._compute(node, tuple(index))
        return self.known[key]

    def fit(self, index: Sequence[str], leading: bool, node: Expr) -> tuple[str, ...]:
        """An index over a shape that `node` broadcasts to (aligned at the end), as an index over the node's own axes."""
        named = len(node.shape.dims)
        tail = index[len(index) - named :] if named else ()
        head = index[: len(index) - named] if node.shape.leading and leading else ()
        return (*head, *("0" if dim == 1 else i for dim, i in zip(node.shape.dims, tail)))

    def _compute(self, node: Expr, index: tuple[str, ...]) -> str:
        if node.op == "input":
            rank = len(self.problem.operand(node.attr).shape)
            return self._define(node, f"{node.attr}({', '.join(index[len(index) - rank :])})")
        if node.op == "scalar":
            return str(node.attr)
        if node.op == "const":
            return literal(node.attr)
        if node.op == "transpose":
            return self.value(node.args[0], (*index[:-2], index[-1], index[-2]))
        if node.op == "repeat":
            count, axis = node.attr
            at = axis + len(index)
            return self.value(node.args[0], (*index[:at], f"{index[at]} / {count}", *index[at + 1 :]))
        if node.op == "matmul":
            return self._matmul(node, index)
        if node.op in REDUCTIONS:
            return self._reduce(node, index)
        arguments = [self.value(a, self.fit(index, node.shape.leading, a)) for a in node.args]
        return self._define(node, self._pointwise(node, arguments))

    def _pointwise(self, node: Expr, arguments: list[str]) -> str:
        if node.op in _INFIX:
            return f"{arguments[0]} {_INFIX[node.op]} {arguments[1]}"
        if node.op in _STD:
            return f"std::{node.op}({', '.join(arguments)})"
        if node.op in _FORMS:
            return _FORMS[node.op].format(*arguments)
        if node.op == "cast":
            if node.dtype is bool_:
                return f"{arguments[0]} != 0"
            if node.dtype.kind == "int":
                return f"std::trunc({arguments[0]})"
            return arguments[0] if node.dtype is f64 else f"rounded<{node.dtype.ctype}>({arguments[0]})"
        raise DefinitionError(f"{node.where}: {node.op} has no plain C++ form; the exported test cannot compute it")

    def _matmul(self, node: Expr, index: tuple[str, ...]) -> str:
        a, b = node.args
        *head, m, n = index
        total = self._name("v")
        k = self._open(total, "0.0", self._extent(a, -1))
        left = self.value(a, self.fit((*head, m, k), node.shape.leading, a))
        right = self.value(b, self.fit((*head, k, n), node.shape.leading, b))
        self._close(f"{total} += {left} * {right};")
        return total

    def _reduce(self, node: Expr, index: tuple[str, ...]) -> str:
        if node.attr != -1:
            raise DefinitionError(
                f"{node.where}: {node.op} over all elements has no plain C++ form in an exported test"
            )
        (x,) = node.args
        total = self._name("v")
        start = {"amax": "-INFINITY", "amin": "INFINITY"}.get(node.op, "0.0")
        extent = self._extent(x, -1)
        k = self._open(total, start, extent)
        value = self.value(x, (*index[:-1], k))
        steps = {"amax": f"{total} = std::fmax({total}, {value});", "amin": f"{total} = std::fmin({total}, {value});"}
        self._close(steps.get(node.op, f"{total} += {value};"))
        if node.op == "mean":
            self._line(f"{total} /= static_cast<double>({extent});")
        return total

    def _extent(self, node: Expr, axis: int) -> str:
        """The size of a node's named axis, read from an input that has it."""
        dim = node.shape.dims[axis]
        for spec, operand in zip(self.graph.inputs, self.problem.inputs):
            if isinstance(dim, Dim) and dim in spec.shape.dims:
                place = len(operand.shape) - len(spec.shape.dims) + spec.shape.dims.index(dim)
                return f"{spec.name}.size({place})"
        return str(dim)

    def _open(self, total: str, start: str, extent: str) -> str:
        k = self._name("k")
        self.outside.append(dict(self.known))
        self._line(f"double {total} = {start};")
        self._line(f"for (int64_t {k} = 0; {k} < {extent}; ++{k}) {{")
        self.indent += "  "
        return k

    def _close(self, line: str) -> None:
        """Ends a loop; the names defined inside are out of scope."""
        self._line(line)
        self.indent = self.indent[:-2]
        self.known = self.outside.pop()
        self._line("}")

    def _define(self, node: Expr, text: str) -> str:
        name = self._name("v")
        self._line(f"const {'bool' if node.dtype is bool_ else 'double'} {name} = {text};")
        return name

    def _line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def _name(self, kind: str) -> str:
        while True:
            name = f"{kind}{self.count[kind]}"
            self.count[kind] += 1
            if name not in self.taken:
                return name


def literal(value: float | int | bool) -> str:
    """A constant of the graph in C++."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else ("INFINITY" if value > 0 else "-INFINITY")
    return repr(float(value))


def tolerance(problem: Problem, output: int) -> tuple[float, float]:
    """The relative and the absolute error an output may have against the reference rounded to its dtype.

    Test inputs are small and, before a contraction, so coarse that every sum is exact. What remains is one unit in the
    last place of the output, and the rounding of pointwise arithmetic in f32 on intermediate values of moderate size.
    """
    dtype = problem.graph.outputs[output].dtype
    nodes = problem.graph.nodes
    if not dtype.is_float:
        return 0.0, 1.0 if any(n.dtype.is_float for n in nodes) and dtype is not bool_ else 0.0
    rounded = [dtype.digits, *(n.dtype.digits for n in nodes if n.op == "cast" and n.dtype.is_float)]
    digits = min(rounded)
    if dtype is f64 and all(n.dtype is not f32 or n.op in ("const", "scalar") for n in nodes):
        return 2.0**-44, 2.0**-44
    return 2.0 ** (1 - digits) + 2.0**-20, 2.0**-18
