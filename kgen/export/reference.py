"""An operator as plain C++ in double precision: what the exported test compares with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kgen.codegen.render import file_text
from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr
from kgen.dsl.operator import Graph, ScalarSpec, TensorSpec, left_out
from kgen.dsl.ops import CONTRACTIONS, NUMBERS, OPS
from kgen.dsl.problem import Problem
from kgen.dsl.size import Binary, Dim, Size
from kgen.dsl.types import bool_, f32, f64, i64
from kgen.ops.attention.algebra import attention
from kgen.ops.linear_attention.algebra import linear_attention

#: Philox4x32-10 (Salmon et al., 2011) as kgen.random has it: number `i` of a seed and an offset.
_UNIFORM = """\
  const auto uniform = [](uint64_t seed, uint64_t offset, uint64_t i) -> double {
    const uint64_t counter = offset + i / 4;
    uint32_t x[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; ++round, key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u) {
      const uint64_t a = uint64_t{0xD2511F53u} * x[0], b = uint64_t{0xCD9E8D57u} * x[2];
      const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ key[0], static_cast<uint32_t>(b),
                                static_cast<uint32_t>(a >> 32) ^ x[3] ^ key[1], static_cast<uint32_t>(a)};
      for (int word = 0; word < 4; ++word) x[word] = next[word];
    }
    return (x[i % 4] >> 8) * 0x1p-24;
  };"""


_WORD = re.compile(r"\w+")

#: What tensors and scalars are called in C++ where that is not their own name.
Names = Mapping[str, str]
#: Where an element stands, a variable or number an axis.
Index = tuple[str, ...]


def reference(problem: Problem, output: int, names: Names = MappingProxyType({})) -> str:
    """The statements that compute element `at[0], at[1], ...` of an output and return it as a double.

    Tensors are called with an index, `x(at[0], at[1])`, and have `x.size(axis)`; scalars are variables. Raises
    DefinitionError for an operation that has no such form.
    """
    writer = _Writer(problem, names)
    rank = len(problem.outputs[output].shape)
    result = problem.graph.results[output]
    index = [f"at[{axis}]" for axis in range(rank)]
    spec = problem.graph.outputs[output]
    reduced = left_out(result, spec)
    for place in sorted(len(index) + len(reduced) + axis for axis in reduced):
        index.insert(place, "0")
    value = writer.value(result, writer.fit(index, spec.shape.leading, result))
    helpers = [_UNIFORM] if any(n.op == "random" for n in problem.graph.nodes) else []
    (body,) = writer.blocks
    return "\n".join([*helpers, *(f"  {line}" for line in body.lines), f"  return {value};"])


def externals(problem: Problem, names: Names = MappingProxyType({})) -> dict[str, str]:
    """The external computations that references use: the text of each's C++ function, by the statement that calls it.

    The statements come before those of any output. Raises DefinitionError for a computation that has no such function.
    """
    found: dict[str, str] = {}
    for node in problem.graph.nodes:
        if node.op != "external":
            continue
        name = node.attr.name
        if not node.attr.cpp:
            raise DefinitionError(
                f"{node.where}: {name} has no plain C++ form, so the exported test cannot compute it; "
                "expected external(..., cpp=FILE) with one"
            )
        arguments = [literal(a.attr) if a.op == "const" else names.get(a.attr, a.attr) for a in node.args]
        found[f"const auto {_results(node)} = {name}_reference({', '.join(arguments)});"] = file_text(node.attr.cpp)
    return found


def _results(node: Expr) -> str:
    """The variable with all results of an external computation."""
    return f"{node.attr.name}_results"


@dataclass
class _Block:
    """Statements between braces behind a `head`, and the variables among them by what they hold. What is `conditional` runs for
    some elements alone."""

    head: str = ""
    lines: list[str] = field(default_factory=list)
    known: dict[tuple[int, Index], str] = field(default_factory=dict)
    conditional: bool = False


class _Writer:
    """Writes one statement a node and index, arguments first; sums open loops of their own, outside of all that they do not
    depend on."""

    def __init__(self, problem: Problem, names: Names) -> None:
        self.problem, self.names = problem, names
        self.graph: Graph = problem.graph
        self.blocks = [_Block()]  # that are open
        self.level: dict[str, int] = {}  # of variables: the number of the block that they are in
        self.count = {"v": 0, "k": 0}
        specs: tuple[TensorSpec | ScalarSpec, ...] = (*self.graph.inputs, *self.graph.scalars)
        self.taken = {self._called(s.name) for s in specs}

    def _called(self, name: str) -> str:
        """A tensor or scalar in C++."""
        return self.names.get(name, name)

    def value(self, node: Expr, index: Sequence[str]) -> str:
        """The C++ variable or literal of a node at an index over its own axes."""
        key = (id(node), tuple(index))
        for block in self.blocks:
            if key in block.known:
                return block.known[key]
        inner = len(self.blocks)
        if node.op in CONTRACTIONS:
            needed = [self.level.get(name, 0) for i in index for name in _WORD.findall(i)]
            needed += [number for number, block in enumerate(self.blocks) if block.conditional]
            inner = 1 + max(needed, default=0)
        self.blocks, within = self.blocks[:inner], self.blocks[inner:]
        found = self.blocks[-1].known[key] = self._compute(node, tuple(index))
        self.blocks += within
        return found

    def fit(self, index: Sequence[str], leading: bool, node: Expr) -> tuple[str, ...]:
        """An index over a shape that `node` broadcasts to (aligned at the end), as an index over the node's own axes."""
        named = len(node.shape.dims)
        tail = index[len(index) - named :] if named else ()
        head = index[: len(index) - named] if node.shape.leading and leading else ()
        return (*head, *("0" if dim == 1 else i for dim, i in zip(node.shape.dims, tail)))

    def _compute(self, node: Expr, index: Index) -> str:
        text = PLAIN.get(node.op)
        if text is None:
            raise DefinitionError(f"{node.where}: {node.op} has no plain C++ form; the exported test cannot compute it")
        if callable(text):
            return text(self, node, index)
        arguments = [self.value(a, self.fit(index, node.shape.leading, a)) for a in node.args]
        return self._define(node, text.format(*arguments))

    def _input(self, node: Expr, index: Index) -> str:
        rank = len(self.problem.operand(node.attr).shape)
        return self._define(node, f"{self._called(node.attr)}({', '.join(index[len(index) - rank :])})")

    def _scalar(self, node: Expr, index: Index) -> str:
        return self._called(node.attr)

    def _const(self, node: Expr, index: Index) -> str:
        return literal(node.attr)

    def _cast(self, node: Expr, index: Index) -> str:
        (x,) = node.args
        value = self.value(x, self.fit(index, node.shape.leading, x))
        if node.dtype is bool_:
            return self._define(node, f"{value} != 0")
        if node.dtype.kind == "int":
            whole = f"std::trunc({value})"
            if x.dtype.is_float and node.dtype is not i64:  # saturates
                limit = 2 ** (node.dtype.bits - 1)
                whole = f"std::min(std::max({whole}, {-limit}.0), {limit - 1}.0)"
            return self._define(node, whole)
        return self._define(node, value if node.dtype is f64 else f"rounded<{node.dtype.ctype}>({value})")

    def _external(self, node: Expr, index: Index) -> str:
        return self._define(node, f"{_results(node)}[{node.attr.index}][{self._number(node, index)}]")

    def _transpose(self, node: Expr, index: Index) -> str:
        return self.value(node.args[0], (*index[:-2], index[-1], index[-2]))

    def _repeat(self, node: Expr, index: Index) -> str:
        count, axis = node.attr
        at = axis + len(index)
        return self.value(node.args[0], (*index[:at], f"{index[at]} / {count}", *index[at + 1 :]))

    def _grouped_matmul(self, node: Expr, index: Index) -> str:
        a, b, offsets = node.args
        group, count = self._name("k"), self._extent(b, -3)
        if offsets.op != "input":
            raise DefinitionError(f"{node.where}: offsets that are computed have no plain C++ form; expected an input")
        end = f"{self._called(offsets.attr)}({group} + 1)"
        self._line(f"int64_t {group} = 0;")
        self._line(f"while ({group} < {count} && {index[0]} >= {end}) ++{group};")
        total = self._name("v")
        k = self._open(total, "0.0", f"({group} < {count} ? {self._extent(a, -1)} : 0)")
        left, right = self.value(a, (index[0], k)), self.value(b, (group, k, index[1]))
        self._close(f"{total} += {left} * {right};")
        return total

    def _matmul(self, node: Expr, index: Index) -> str:
        a, b = node.args
        *head, m, n = index
        total = self._name("v")
        k = self._open(total, "0.0", self._extent(a, -1))
        left = self.value(a, self.fit((*head, m, k), node.shape.leading, a))
        right = self.value(b, self.fit((*head, k, n), node.shape.leading, b))
        self._close(f"{total} += {left} * {right};")
        return total

    def _reduce(self, node: Expr, index: Index) -> str:
        (x,) = node.args
        total = self._name("v")
        start = {"amax": "-INFINITY", "amin": "INFINITY"}.get(node.op, "0.0")
        rank = len(index) if node.attr is not None else self._rank(x)
        axes = (node.attr,) if isinstance(node.attr, int) else node.attr or tuple(range(-rank, 0))
        inside = list(index) if node.attr is not None else [""] * rank
        if node.op == "argmax":
            return self._argmax(x, total, axes, inside)
        for level, axis in enumerate(axes):
            inside[axis] = self._open(total if level == 0 else "", start, self._extent(x, axis))
        value = self.value(x, tuple(inside))
        nan = f"std::isnan({total}) || {total}"
        steps = {"amax": f"{total} = {nan} > {value} ? {total} : {value};"}
        steps["amin"] = f"{total} = {nan} < {value} ? {total} : {value};"
        self._close(steps.get(node.op, f"{total} += {value};"), len(axes))
        if node.op == "mean":
            count = " * ".join(f"static_cast<double>({self._extent(x, axis)})" for axis in axes)
            self._line(f"{total} /= {count};")
        return total

    def _scan(self, node: Expr, index: Index) -> str:
        """Of the elements up to this one; with exponentials of what they are less than the largest so far."""
        (x,) = node.args
        *head, last = index
        total, largest = self._name("v"), self._name("v")
        if node.op == "logcumsumexp":
            self._line(f"double {largest} = -INFINITY;")
        k = self._open(total, "1.0" if node.op == "cumprod" else "0.0", f"{last} + 1")
        value = self.value(x, (*head, k))
        if node.op != "logcumsumexp":
            self._close(f"{total} {'*' if node.op == 'cumprod' else '+'}= {value};")
            return total
        self._line(f"if (!({value} <= {largest})) {{")
        self._line(f"  {total} *= std::exp({largest} - {value});")
        self._line(f"  {largest} = {value};")
        self._line("}")
        self._close(f"{total} += {value} == {largest} ? 1.0 : std::exp({value} - {largest});")
        return self._define(node, f"{largest} + std::log({total})")

    def _argmax(self, x: Expr, total: str, axes: tuple[int, ...], inside: list[str]) -> str:
        """The place of the first of the largest values, counted row by row; NaN counts as the largest."""
        best, place = self._name("v"), self._name("k")
        self._line(f"double {best} = -INFINITY;")
        self._line(f"int64_t {place} = 0;")
        for level, axis in enumerate(axes):
            inside[axis] = self._open(total if level == 0 else "", "0.0", self._extent(x, axis))
        value = self.value(x, tuple(inside))
        self._line(f"if (!std::isnan({best}) && ({value} > {best} || std::isnan({value}))) {{")
        self._line(f"  {best} = {value};")
        self._line(f"  {total} = static_cast<double>({place});")
        self._line("}")
        self._close(f"++{place};", len(axes))
        return total

    def _arange(self, node: Expr, index: Index) -> str:
        return self._define(node, f"static_cast<double>({index[len(index) - len(node.shape.dims)]})")

    def _size(self, node: Expr, index: Index) -> str:
        return self._define(node, f"static_cast<double>({self._size_of(node.attr)})")

    def _exchange(self, node: Expr, index: Index) -> str:
        *head, last = index
        extent = self._extent(node, -1)
        place = f"({last} + {extent} / 2) % {extent}" if node.attr == "halves" else f"({last} ^ 1)"
        return self.value(node.args[0], (*head, self._place(place)))

    def _random(self, node: Expr, index: Index) -> str:
        place = self._number(node, index)
        seed, offset = (f"static_cast<uint64_t>(static_cast<int64_t>({self.value(a, ())}))" for a in node.args)
        return self._define(node, f"uniform({seed}, {offset}, static_cast<uint64_t>({place}))")

    def _take(self, node: Expr, index: Index) -> str:
        x, ids = node.args
        after = -node.attr - 1
        first = len(index) - after - len(ids.shape.dims) - (self._rank(ids) - len(ids.shape.dims))
        end = len(index) - after
        place = self._place(f"static_cast<int64_t>({self.value(ids, index[first:end])})")
        found = self._name("v")
        self._line(f"double {found} = 0.0;")
        self.blocks.append(_Block(f"if ({place} >= 0 && {place} < {self._extent(x, node.attr)}) {{", conditional=True))
        value = self.value(x, (*index[:first], place, *index[end:]))
        self._close(f"{found} = {value};")
        return found

    def _scatter_add(self, node: Expr, index: Index) -> str:
        ids, values = node.args
        _, axis, _ = node.attr
        total = self._name("v")
        flat = not values.shape.dims or values.shape == ids.shape
        rank = self._rank(ids)
        places: list[str] = []
        for level in range(rank):
            places.append(self._open(total if level == 0 else "", "0.0", self._extent(ids, level - rank)))
        key = self.value(ids, tuple(places))
        self.blocks.append(_Block(f"if ({key} == static_cast<double>({index[axis]})) {{", conditional=True))
        if flat:
            at = self.fit(places, ids.shape.leading, values)
        else:
            at = tuple(places[0] if k - len(index) == axis else i for k, i in enumerate(index))
        self._close(f"{total} += {self.value(values, at)};", rank + 1)
        return total

    def _number(self, node: Expr, index: Index) -> str:
        """The number of an element, counted row by row."""
        place = index[0] if index else "0"
        for axis in range(-len(index) + 1, 0):
            place = f"({place}) * {self._extent(node, axis)} + {index[axis]}"
        return place

    def _rank(self, node: Expr) -> int:
        """The number of a node's axes, leading ones included."""
        return len(node.shape.dims) + (len(self.problem.leading) if node.shape.leading else 0)

    def _extent(self, node: Expr, axis: int) -> str:
        """The size of one of a node's axes, counted from the end; of leading ones, read from an input that is not broadcast."""
        if -axis <= len(node.shape.dims):
            return self._size_of(node.shape.dims[axis])
        back = -axis - len(node.shape.dims)
        for spec, operand in zip(self.graph.inputs, self.problem.inputs):
            place = len(operand.shape) - len(spec.shape.dims) - back
            if spec.shape.leading and place >= 0 and operand.shape[place] == self.problem.leading[-back]:
                return f"{self._called(spec.name)}.size({place})"
        return str(self.problem.leading[-back])

    def _size_of(self, dim: Size) -> str:
        """The size of a dimension, read from a tensor that has it, an input where one does; of a product, of its factors."""
        if isinstance(dim, Binary) and dim.op == "*":
            return f"({self._size_of(dim.left)} * {self._size_of(dim.right)})"
        specs = (*self.graph.inputs, *self.graph.outputs)
        for spec, operand in zip(specs, (*self.problem.inputs, *self.problem.outputs)):
            if isinstance(dim, Dim) and dim in spec.shape.dims:
                place = len(operand.shape) - len(spec.shape.dims) + spec.shape.dims.index(dim)
                return f"{self._called(operand.name)}.size({place})"
        return str(self.problem.sizes.get(dim.name, dim) if isinstance(dim, Dim) else dim)

    def _open(self, total: str, start: str, extent: str) -> str:
        """Begins a loop over an axis, and before it, where it is the first of a sum, the sum."""
        if total:
            self._line(f"double {total} = {start};")
        k = self._name("k", inside=True)
        self.blocks.append(_Block(f"for (int64_t {k} = 0; {k} < {extent}; ++{k}) {{"))
        return k

    def _close(self, line: str, levels: int = 1) -> None:
        """Ends so many blocks, the innermost with a line of its own."""
        self._line(line)
        for _ in range(levels):
            block = self.blocks.pop()
            self.blocks[-1].lines += [block.head, *(f"  {line}" for line in block.lines), "}"]

    def _place(self, text: str) -> str:
        """An index that is computed, as a variable."""
        name = self._name("k")
        self._line(f"const int64_t {name} = {text};")
        return name

    def _define(self, node: Expr, text: str) -> str:
        name = self._name("v")
        self._line(f"const {'bool' if node.dtype is bool_ else 'double'} {name} = {text};")
        return name

    def _line(self, text: str) -> None:
        self.blocks[-1].lines.append(text)

    def _name(self, kind: str, inside: bool = False) -> str:
        """A new variable of the innermost block, or of the one that begins now."""
        while True:
            name = f"{kind}{self.count[kind]}"
            self.count[kind] += 1
            if name not in self.taken:
                self.level[name] = len(self.blocks) - (not inside)
                return name


_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFIX |= {"eq": "==", "ne": "!=", "and": "&&", "or": "||"}
_STD = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "tanh", "erf", "erfc", "sin", "cos", "floor", "ceil")
#: Every op in plain C++: a text of a pointwise op's operands, or what writes the node at an index.
PLAIN: dict[str, str | Callable[[_Writer, Expr, Index], str]] = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in _INFIX.items()},
    **{op: f"std::{op}({{0}})" for op in _STD},
    "pow": "std::pow({0}, {1})",
    "atan2": "std::atan2({0}, {1})",
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
    "floordiv": "std::floor({0} / {1})",
    "mod": "{0} - std::floor({0} / {1}) * {1}",
    "cast": _Writer._cast,
    "input": _Writer._input,
    "scalar": _Writer._scalar,
    "const": _Writer._const,
    "transpose": _Writer._transpose,
    "repeat": _Writer._repeat,
    "exchange": _Writer._exchange,
    "take": _Writer._take,
    "arange": _Writer._arange,
    "size": _Writer._size,
    "random": _Writer._random,
    "matmul": _Writer._matmul,
    "grouped_matmul": _Writer._grouped_matmul,
    **dict.fromkeys(("sum", "mean", "amax", "amin", "argmax"), _Writer._reduce),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _Writer._scan),
    "scatter_add": _Writer._scatter_add,
    "external": _Writer._external,
}


def literal(value: float | int | bool) -> str:
    """A constant of the graph in C++."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else ("INFINITY" if value > 0 else "-INFINITY")
    return repr(float(value))


def tolerance(problem: Problem, output: int) -> tuple[float, float]:
    """The relative and the absolute error an output may have against the reference rounded to its dtype.

    Test inputs are small and, before sums whose terms cancel, so coarse that these are exact. What remains is one unit in the
    last place of the output, and the rounding of pointwise arithmetic in f32 on intermediate values of moderate size. So what
    the gate measures errors by, torch's own arithmetic, is within it: tests/promises/test_exports.py holds that. The
    weights of attention are rounded each, before or after their row's sum is taken out; they come to 1, and values are no larger.
    So are those of linear attention, which decay.
    """
    dtype = problem.graph.outputs[output].dtype
    nodes = problem.graph.nodes
    if not dtype.is_float:
        exact = dtype is bool_ or OPS[problem.graph.results[output].op].kind == "external"
        return 0.0, 1.0 if not exact and any(n.dtype.is_float for n in nodes) else 0.0
    rounded = [dtype.digits, *(n.dtype.digits for n in nodes if OPS[n.op].exactness == "cast" and n.dtype.is_float)]
    digits = min(rounded)
    if dtype is f64 and all(n.dtype is not f32 or n.op in NUMBERS for n in nodes):
        return 2.0**-44, 2.0**-44
    step = 2.0 ** (1 - digits)
    rounds_weights = attention(problem.graph) is not None or linear_attention(problem.graph) is not None
    return step + 2.0**-20, step if rounds_weights else 2.0**-18
