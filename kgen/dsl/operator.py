"""Operator: a typed Python function and the expression graph it traces to. Its meaning, with nothing about speed."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import math
import numbers
import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Union, get_args, get_origin

from kgen.dsl.errors import ArgumentError, DefinitionError, told_of
from kgen.dsl.expr import (
    Expr,
    Location,
    Shape,
    broadcast,
    caller_location,
    constant,
    describe,
    fault,
    walk,
    with_arguments,
)
from kgen.dsl.size import Dim, SizeExpr, symbols_of
from kgen.dsl.types import AnyDType, DType, DTypeVar, f32, f64, from_torch, i32, i64

T = TypeVar("T")


@dataclass(frozen=True)
class Tensor:
    """A tensor's type. `Tensor[f16, M, K]` is an f16 matrix; `Tensor[T, ..., N]` has any number of leading dimensions.

    The leading dimensions of all operands broadcast to each other; named ones are equal wherever they occur. A size may
    follow from named ones, as in `Tensor[f32, M, ceil_div(K, 128)]`.
    """

    dtype: AnyDType
    shape: Shape

    def __class_getitem__(cls, item: Any) -> Tensor:
        parts = item if isinstance(item, tuple) else (item,)
        dtype, *dims = from_torch(parts[0]), *parts[1:]
        if not isinstance(dtype, (DType, DTypeVar)):
            raise DefinitionError(f"Tensor[...] starts with a dtype such as f16 or a dtype variable, got {dtype!r}")
        leading = bool(dims) and dims[0] is ...
        for dim in dims[leading:]:
            if not isinstance(dim, SizeExpr) and not (isinstance(dim, int) and dim > 0):
                raise DefinitionError(
                    f"a dimension of Tensor[...] is a name from dims(...), a size made of them, or a positive int, "
                    f"got {dim!r}"
                )
        return cls(dtype, Shape(tuple(dims[leading:]), leading))


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a graph: name, dtype and symbolic shape."""

    name: str
    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{self.shape}"


@dataclass(frozen=True)
class ScalarSpec:
    """A number given with each call, from `low` to `high`; `default` is None where the caller has to give it."""

    name: str
    dtype: DType
    default: Union[float, int, None]
    # What a call may give is no part of what a kernel means, nor of its key.
    low: float = field(default=-math.inf, repr=False)
    high: float = field(default=math.inf, repr=False)

    def value(self, given: Any) -> Union[float, int]:
        """What a caller gives as a number of this dtype and range. Raises ArgumentError where it is none."""
        kind = "a float" if self.dtype.is_float else f"an int of {self.dtype.bits} bits"
        wanted = numbers.Real if self.dtype.is_float else numbers.Integral
        told = told_of(given)
        if not isinstance(given, wanted) or isinstance(given, bool):
            raise ArgumentError(f"{self.name} is {type(given).__name__} {told}; expected {kind}")
        value: Union[float, int, None]
        try:
            value = float(given) if self.dtype.is_float else int(given)  # type: ignore[call-overload]
        except OverflowError:
            value = None  # no float is as large
        most = _LARGEST[self.dtype]
        least = -most if self.dtype.is_float else -most - 1
        if value is None or not (least <= value <= most or value != value or abs(value) == math.inf):
            expected = f"a number within {self.dtype}'s range" if self.dtype.is_float else kind
            raise ArgumentError(f"{self.name} is {told}; expected {expected}")
        if not (self.low <= value <= self.high) and (self.low, self.high) != (-math.inf, math.inf):
            raise ArgumentError(f"{self.name} is {told}; expected {kind} from {self.low} to {self.high}")
        return value


@dataclass(frozen=True)
class Graph:
    """An operator for given dtypes: inputs, scalars, and for every output the expression that is rounded into it.

    `unordered`: sums of floats may be added up in any order, so that results differ in their last bits from run to run.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    outputs: tuple[TensorSpec, ...]
    results: tuple[Expr, ...]
    where: Location
    unordered: bool = False

    @functools.cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """All nodes, arguments before their users."""
        return tuple(walk(self.results))

    @functools.cached_property
    def merged(self) -> Graph:
        """The graph with nodes that mean the same as one, so that none is computed twice; itself where there are no such."""
        made: dict[int, Expr] = {}
        known: dict[object, Expr] = {}
        for node in self.nodes:
            arguments = tuple(made[id(a)] for a in node.args)
            key = (node.op, repr(node.attr), node.dtype, node.shape, tuple(map(id, arguments)))
            made[id(node)] = known.setdefault(key, with_arguments(node, arguments))
        results = tuple(made[id(result)] for result in self.results)
        return self if all(a is b for a, b in zip(results, self.results)) else replace(self, results=results)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions, in the order of their first appearance."""
        shapes = [spec.shape for spec in (*self.inputs, *self.outputs)]
        return tuple(dict.fromkeys(d.name for shape in shapes for d in shape.dims if isinstance(d, Dim)))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the meaning: specs and nodes, without names of files and lines."""
        nodes = self.nodes
        number = {id(node): i for i, node in enumerate(nodes)}
        lines = [self.name, *map(str, self.inputs), *map(repr, self.scalars), *map(str, self.outputs)]
        lines += [f"{n.op} {n.attr!r} {n.dtype} {n.shape} {[number[id(a)] for a in n.args]}" for n in nodes]
        lines.append(str([number[id(r)] for r in self.results]))
        lines += ["unordered"] if self.unordered else []
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    # By meaning: nodes do not compare, and an operator may be traced twice.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def of_graph(function: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """Finds what follows from a graph once an object: the nodes of graphs that are equal are not the same."""
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def found(graph: Graph) -> T:
        known = graph.__dict__
        if name not in known:
            known[name] = function(graph)
        return known[name]  # type: ignore[no-any-return]  # what the function gave

    return found


#: The dtype of a number's annotation.
_SCALARS: dict[object, DType] = {float: f32, int: i32, i64: i64}
#: The largest number of a dtype that numbers come in.
_LARGEST = {f32: (2 - 2.0**-23) * 2.0**127, f64: sys.float_info.max, i32: 2**31 - 1, i64: 2**63 - 1}
#: What a name may be: it becomes a word of C++, the name of a file, a word of a command line.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)


@dataclass(frozen=True)
class Number:
    """A number's type with its range: `p: Number[float, 0, 1]`, both ends included; float, int or i64."""

    dtype: DType
    low: float
    high: float

    def __class_getitem__(cls, item: Any) -> Number:
        if not isinstance(item, tuple) or len(item) != 3 or item[0] not in _SCALARS or not item[1] <= item[2]:
            raise DefinitionError(f"Number[...] is float, int or i64, the least and the largest value, got {item!r}")
        return cls(_SCALARS[item[0]], *item[1:])


def _widest(dtype: DType) -> DType:
    return f64 if dtype.is_float else dtype


def left_out(node: Expr, spec: TensorSpec) -> tuple[int, ...]:
    """The axes of size 1 of a result, as negative numbers, that its declared shape leaves out: the last, or all of them."""
    got, rank = node.shape.dims, len(node.shape.dims)
    ones = tuple(a - rank for a, size in enumerate(got) if size == 1)
    for axes in ((), (-1,) if ones[-1:] == (-1,) else (), ones):
        if spec.shape.dims == tuple(size for a, size in enumerate(got) if a - rank not in axes):
            return axes
    return ()


class Operator:
    """A traced function. `graph(dtypes)` is its meaning once its dtype variables are chosen; it is traced when graphs are first
    asked for, so that whoever imports a hundred operators does not wait for them.

    `suites` are named lists of sizes (by dimension; a tuple under "..." for the leading ones) where those that its family
    makes up are not what somebody would run; "default" is what is tuned where no shape is named. DefinitionError, when it is
    traced, where a dimension is missing or unknown there.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        suites: Mapping[str, Sequence[Mapping[str, int | tuple[int, ...]]]] | None = None,
    ) -> None:
        self.where = caller_location()
        if not callable(function):
            raise DefinitionError(f"{self.where}: an operator is made of a typed function, got {told_of(function)}")
        given: Any = name or getattr(function, "__name__", type(function).__name__)
        self.name: str = given
        self._check_name(self.name, "an operator")
        self.__doc__ = function.__doc__
        self.function = function
        self._read_signature()
        self.suites = dict(suites or {})
        self._graphs: tuple[Graph, ...] | None = None

    @classmethod
    def of_graphs(
        cls, graphs: Sequence[Graph], doc: str, suites: Mapping[str, Sequence[Mapping[str, int | tuple[int, ...]]]]
    ) -> Operator:
        """An operator whose graphs are made already, one for each choice of dtypes; it cannot be used in a definition."""
        made, first = cls.__new__(cls), graphs[0]

        def function(*given: object, **named: object) -> Expr:
            raise fault(f"{first.name} is a launch of an operator and has no definition of its own; call the operator")

        made.where, made.name, made.__doc__, made.function = first.where, first.name, doc, function
        made.tensors = {spec.name: Tensor(spec.dtype, spec.shape) for spec in first.inputs}
        made.scalars, made.variables = list(first.scalars), ()
        made.outputs = tuple(Tensor(spec.dtype, spec.shape) for spec in first.outputs)
        made._graphs = tuple({tuple(s.dtype for s in (*g.inputs, *g.outputs)): g for g in graphs}.values())
        made.suites = dict(suites)
        return made

    def _traced(self) -> tuple[Graph, ...]:
        found = tuple(
            self._trace(dict(zip(self.variables, choice)))
            for choice in itertools.product(*(v.choices for v in self.variables))
        )
        for suite, problems in self.suites.items():
            for sizes in problems:
                self._check_sizes(suite, sizes, found[0])
        return found

    def _check_sizes(self, suite: str, sizes: Mapping[str, int | tuple[int, ...]], graph: Graph) -> None:
        leading = any(t.shape.leading for t in self.tensors.values())
        expected = {*graph.dims, *(["..."] if leading else [])}
        if set(sizes) != expected:
            raise DefinitionError(
                f"{self.where}: {self.name}: suite {suite!r} has {dict(sizes)}; expected sizes of {', '.join(sorted(expected))}"
            )

    def _check_name(self, name: object, what: str) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DefinitionError(
                f"{self.where}: {what} is named {told_of(name)}; expected at most 100 letters from A to Z, digits and "
                f"underscores, no digit first"
            )

    def _read_signature(self) -> None:
        try:
            signature = inspect.signature(self.function, eval_str=True)
        except NameError as error:
            raise DefinitionError(
                f"{self.where}: {self.name}: annotation uses {error.name!r}, which is not defined at module level"
            ) from error
        except ValueError as error:  # of what is not written in Python
            raise DefinitionError(
                f"{self.where}: {self.name}: an operator is made of a typed function: {error}"
            ) from error
        self.tensors: dict[str, Tensor] = {}
        self.scalars: list[ScalarSpec] = []
        for name, parameter in signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise DefinitionError(f"{self.where}: {self.name}: *{name} is not supported; name every operand")
            if parameter.kind is parameter.KEYWORD_ONLY:
                raise DefinitionError(f"{self.where}: {self.name}: {name} stands behind a *; expected none before it")
            self._check_name(name, f"{self.name}: an operand")
            kind = parameter.annotation
            if isinstance(kind, Tensor):
                if self.scalars:
                    raise DefinitionError(
                        f"{self.where}: {self.name}: tensor {name} follows a number; tensors come first"
                    )
                self.tensors[name] = kind
            elif isinstance(kind, Number) or (isinstance(kind, Hashable) and kind in _SCALARS):
                kind = kind if isinstance(kind, Number) else Number(_SCALARS[kind], -math.inf, math.inf)
                spec = ScalarSpec(name, kind.dtype, None, kind.low, kind.high)
                if parameter.default not in (parameter.empty, None):
                    try:
                        spec = replace(spec, default=replace(spec, dtype=_widest(spec.dtype)).value(parameter.default))
                    except ArgumentError as error:
                        raise DefinitionError(f"{self.where}: {self.name}: the default of {error}") from error
                self.scalars.append(spec)
            else:
                told = "nothing" if kind is parameter.empty else repr(kind)
                raise DefinitionError(
                    f"{self.where}: {self.name}: operand {name} is annotated with {told}; expected Tensor[...], float, int or i64"
                )
        if not self.tensors:
            raise DefinitionError(f"{self.where}: {self.name} takes no tensor; an operator needs at least one")
        result = signature.return_annotation
        self.outputs: tuple[Tensor, ...] = get_args(result) if get_origin(result) is tuple else (result,)
        if not all(isinstance(t, Tensor) for t in self.outputs):
            raise DefinitionError(
                f"{self.where}: {self.name}: the result needs the annotation -> Tensor[...], got {result!r}"
            )
        types = [t.dtype for t in (*self.tensors.values(), *self.outputs)]
        self.variables = tuple(dict.fromkeys(t for t in types if isinstance(t, DTypeVar)))
        for variable in self.variables:
            self._check_name(variable.name, f"{self.name}: a dtype variable")
        for size in (size for t in (*self.tensors.values(), *self.outputs) for size in t.shape.dims):
            for dim in symbols_of(size):
                self._check_name(dim, f"{self.name}: a dimension")

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of every choice of dtypes, the first choice first."""
        if self._graphs is None:
            self._graphs = self._traced()
        return self._graphs

    def graph(self, dtypes: Mapping[str, DType]) -> Graph:
        """The graph whose operands have the given dtypes, by operand name; those not named are free (first choice)."""
        for graph in self.graphs:
            if all(dtypes.get(s.name, s.dtype) is s.dtype for s in (*graph.inputs, *graph.outputs)):
                return graph
        told = ", ".join(f"{name}: {t}" for name, t in dtypes.items())
        choices = "; ".join(sorted({", ".join(f"{s.name}: {s.dtype}" for s in g.inputs) for g in self.graphs}))
        raise ArgumentError(f"{self.name} got dtypes {told}; expected one of: {choices}")

    def _trace(self, binding: Mapping[DTypeVar, DType]) -> Graph:
        def concrete(t: AnyDType) -> DType:
            return binding[t] if isinstance(t, DTypeVar) else t

        inputs = tuple(TensorSpec(name, concrete(t.dtype), t.shape) for name, t in self.tensors.items())
        floats = [s.dtype for s in inputs if s.dtype.is_float]
        # Numbers are as wide as what is computed with them.
        wide = f64 in (concrete(t.dtype) for t in self.outputs) or (floats and all(t is f64 for t in floats))
        scalars = tuple(replace(s, dtype=_widest(s.dtype)) if wide else s for s in self.scalars)
        arguments = [Expr("input", (), s.dtype, s.shape, s.name, self.where) for s in inputs]
        arguments += [Expr("scalar", (), s.dtype, Shape(), s.name, self.where) for s in scalars]
        returned = self.function(*arguments)
        results = returned if isinstance(returned, tuple) else (returned,)
        if len(results) != len(self.outputs):
            raise DefinitionError(
                f"{self.where}: {self.name} returns {len(results)} values; annotated: {len(self.outputs)}"
            )
        names = ("out",) if len(results) == 1 else tuple(f"out{i}" for i in range(len(results)))
        outputs = tuple(TensorSpec(n, concrete(t.dtype), t.shape) for n, t in zip(names, self.outputs))
        clash = set(names) & {*self.tensors, *(s.name for s in self.scalars)}
        if clash:
            raise DefinitionError(
                f"{self.where}: {self.name}: operand {clash.pop()} has the name of the result; rename it"
            )
        nodes = tuple(constant(r) for r in results)
        for spec, node in zip(outputs, nodes):
            self._check_result(spec, node)
        graph = Graph(self.name, inputs, scalars, outputs, nodes, self.where)
        for node in graph.nodes:
            sizes = [size for size in (*node.shape.dims, node.attr) if isinstance(size, (int, SizeExpr))]
            for dim in sorted(frozenset().union(*map(symbols_of, sizes)) - {*graph.dims}):
                raise DefinitionError(f"{node.where}: {self.name}: no operand has the dimension {dim} of {node.op}")
        return graph

    def _check_result(self, spec: TensorSpec, node: Expr) -> None:
        declared, got = spec.shape, node.shape
        kept = [size for a, size in enumerate(got.dims) if a - len(got.dims) not in left_out(node, spec)]
        fits = declared.leading == got.leading and declared.dims == tuple(kept)
        if not fits and not (declared.leading or got.leading):
            target = Expr("input", (), spec.dtype, declared, spec.name)
            fits = broadcast((target, node)) == declared
        if not fits:
            raise DefinitionError(
                f"{node.where}: {self.name} computes {describe(node)}, declared is {spec}; shapes differ"
            )
        kinds = {"bool": 0, "int": 1, "float": 2}
        if kinds[node.dtype.kind] > kinds[spec.dtype.kind] or (spec.dtype.kind != "bool" and node.dtype.kind == "bool"):
            raise DefinitionError(
                f"{node.where}: {self.name} computes {describe(node)}, declared is {spec}; use cast(..., {spec.dtype})"
            )
