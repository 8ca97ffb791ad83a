"""Regions: nodes of torch's graph that one kernel of kgen's computes, and the expression graph of what they compute."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from kgen import ops  # noqa: F401  # which has the families
from kgen.dsl.expr import Expr, Location, made_at, walk
from kgen.dsl.family import family_of, has_kernel
from kgen.dsl.operator import Graph, TensorSpec
from kgen.dsl.ops import OPS
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.size import Dim, Size, evaluate
from kgen.dsl.types import f32
from kgen.numerics.dtypes import from_torch
from kgen.runtime.backend.aten import ROWS, Kind, Site, Untaken, Value, check, input_value
from kgen.runtime.library import hint

_LINE = re.compile(r'File "([^"]*)", line (\d+)')


@dataclass(frozen=True)
class Region:
    """`graph` is computed of the nodes `inputs`, and its results are the nodes `outputs`; `nodes` are all that it computes."""

    graph: Graph
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    values: tuple[Value, ...]


def tensor_of(node: Node) -> torch.Tensor:
    """The tensor without memory that stands for a node's result; Untaken where that is none."""
    found = node.meta.get("val")
    if not isinstance(found, torch.Tensor):
        raise Untaken("it is no tensor")
    if found.layout is not torch.strided or found.is_complex() or found.is_nested:
        raise Untaken("it is no dense tensor of numbers")
    return found


def location(node: Node) -> Location:
    """The line of the model that a node is of; that of its op where torch does not say."""
    found = _LINE.findall(node.meta.get("stack_trace") or "")
    if not found:
        return Location(str(node.target), 1)
    file, line = found[-1]
    return Location(file.replace("\\", "/").rpartition("/")[2], int(line))


def comparable(numbers: Iterable[Any]) -> tuple[Any, ...]:
    """Numbers, and of symbols the expressions, which compare without a condition on them."""
    return tuple(n if isinstance(n, int) else n.node.expr for n in numbers)


def sizes_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Its sizes, to be compared."""
    return comparable(tensor.shape)


@functools.lru_cache(maxsize=4096)
def _count(sizes: tuple[Any, ...]) -> Any:
    """How many elements there are of such sizes: equal counts are equal expressions. To multiply symbols takes time."""
    return math.prod(sizes)


class Sizes:
    """Names for sizes: equal ones, numbers or symbols of torch, have one name."""

    def __init__(self) -> None:
        self.known: dict[Any, Dim] = {}

    def shape(self, tensor: torch.Tensor) -> tuple[Size, ...]:
        return tuple(1 if n == 1 else self.known.setdefault(n, Dim(f"d{len(self.known)}")) for n in sizes_of(tensor))


def build(nodes: Collection[Node], place: Mapping[Node, int]) -> Region:
    """The region of these nodes. Untaken where they are no expression of kgen's, or where no kernel computes it."""
    order = sorted(nodes, key=place.__getitem__)
    sizes, made, inputs = Sizes(), dict[Node, Any](), list[Node]()

    def value_of(given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [value_of(x) for x in given]
        if isinstance(given, Node) and given not in made and isinstance(given.meta.get("val"), torch.Tensor):
            tensor = tensor_of(given)
            made[given] = input_value(f"x{len(inputs)}", from_torch(tensor.dtype), sizes.shape(tensor))
            inputs.append(given)
        return made.get(given, given) if isinstance(given, Node) else given

    for node in order:
        with made_at(location(node)):
            made[node] = _translated(node, sizes, value_of)
    cheap = {n for n in order if is_cheap(n) or _is_broadcast(made[n], n, sizes)}
    again = recomputed(order, cheap)
    outputs = [n for n in order if n not in cheap and any(u not in nodes or u in again for u in n.users)]
    declared = [_output(n, made[n], "out" if len(outputs) == 1 else f"out{k}") for k, n in enumerate(outputs)]
    results = [_unrounded(made[n].expr, spec) for n, spec in zip(outputs, declared)]
    read = {x.attr for x in walk(tuple(results)) if x.op == "input"}
    inputs = [n for n in inputs if made[n].expr.attr in read]
    specs = [TensorSpec(made[n].expr.attr, made[n].expr.dtype, made[n].expr.shape) for n in inputs]
    graph = Graph(_name(order), tuple(specs), (), tuple(declared), tuple(results), location(order[0]))
    _check(graph, [*inputs, *outputs])
    return Region(graph, tuple(order), tuple(inputs), tuple(outputs), tuple(made[n] for n in outputs))


def problem_of(region: Region) -> Problem:
    """What a region computes, of the sizes that symbols had as torch's graph was made, and of aligned tensors."""
    inputs = []
    for spec, node in zip(region.graph.inputs, region.inputs):
        tensor = tensor_of(node)
        shape, strides = tuple(map(hint, tensor.shape)), tuple(map(hint, tensor.stride()))
        kept = tuple(d if n == 1 else s for n, s, d in zip(shape, strides, dense_strides(shape)))
        inputs.append(Operand(spec.name, spec.dtype, shape, kept))
    sizes = Problem.bind(region.graph, inputs).sizes
    shapes = [tuple(evaluate(d, sizes) for d in spec.shape.dims) for spec in region.graph.outputs]
    outputs = [Operand(s.name, s.dtype, n, dense_strides(n)) for s, n in zip(region.graph.outputs, shapes)]
    return Problem.bind(region.graph, [*inputs, *outputs])


def _translated(node: Node, sizes: Sizes, value_of: Callable[[Any], Any]) -> Any:
    """The value of a node: of one with several results, a tuple."""
    row = ROWS.get(node.target)
    if row is None:
        raise Untaken("kgen's language has no such op")
    several = isinstance(node.meta.get("val"), (tuple, list))
    if several:
        site = Site((), f32)
    else:
        tensor = tensor_of(node)
        site = Site(sizes.shape(tensor), from_torch(tensor.dtype))
    keywords = {name: value_of(x) for name, x in node.kwargs.items()}
    found = row.make(site, *(value_of(x) for x in node.args), **keywords)
    if not several:
        check(found, site)
    return found


def _is_broadcast(value: Any, node: Node, sizes: Sizes) -> bool:
    """Whether a value has fewer elements than torch's."""
    if not isinstance(value, Value):
        return False
    return tuple(value.size(i) for i in range(len(value.axes))) != sizes.shape(tensor_of(node))


def _output(node: Node, value: Any, name: str) -> TensorSpec:
    """The declaration of a result: with the axes of size 1 that torch leaves out."""
    if not isinstance(value, Value):
        raise Untaken("it has several results")
    tensor = tensor_of(node)
    if not tensor.is_contiguous():
        raise Untaken("its result is not row-major")
    if any(-a > len(value.expr.shape.dims) for a in value.axes):
        raise Untaken("its result has axes of size 1 before all others")
    return TensorSpec(name, from_torch(tensor.dtype), value.expr.shape)


def _unrounded(result: Expr, spec: TensorSpec) -> Expr:
    """A result before a rounding that its output makes."""
    rounded = result.op == "cast" and result.dtype is spec.dtype and spec.dtype.is_float
    return result.args[0] if rounded and result.args[0].dtype.is_float else result


def _check(graph: Graph, nodes: Sequence[Node]) -> None:
    """Raises Untaken where a graph cannot be an operator, or where no kernel computes it."""
    if not graph.outputs or not graph.inputs:
        raise Untaken("nothing but views of it is used")
    if len({tensor_of(node).device for node in nodes}) > 1:
        raise Untaken("its tensors are on several devices")
    told = {d for spec in graph.inputs for d in spec.shape.dims}
    if not {d for node in graph.nodes for d in node.shape.dims if d != 1} <= told:
        raise Untaken("no input tells a size of it")
    for node in graph.nodes:
        if OPS[node.op].kind == "product" and node.args[0].dtype is f32 and _is_coarse(tensor_of(nodes[0]).device):
            raise Untaken("torch may round factors of f32 to tf32 here")
    if not has_kernel(graph):
        raise Untaken("no family of kernels serves it")
    family_of(graph)  # raises where several do


def _is_coarse(device: torch.device) -> bool:
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"


def _name(nodes: Sequence[Node]) -> str:
    """What a region's kernel is called: by its ops."""
    names = [word for node in nodes if (word := op_name(node)) and ROWS[node.target].kind != "view"]
    return "_".join(dict.fromkeys(names))[:60].rstrip("_")


def op_name(node: Node) -> str:
    """torch's name of a node's op."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2].strip("_") if schema else getattr(node.target, "__name__", str(node.target))


def kind_of(node: Node) -> Kind | None:
    """What a node is to regions; None of what is not translated."""
    row = ROWS.get(node.target) if node.op == "call_function" else None
    return row.kind if row else None


@functools.cache
def is_cheap(node: Node) -> bool:
    """Whether a node is rather computed twice than written to memory: views, constants, what is wider than what it is of.

    It is asked of each many times while a region grows; `changed` is to be called where the graph has become another.
    """
    kind = kind_of(node)
    if kind == "view":
        return node.target is not operator.getitem
    if kind != "pointwise" or any(user.op == "output" for user in node.users):
        return False
    return not node.all_input_nodes or _is_widened(node)


def changed() -> None:
    """Forgets what was asked of the nodes of a graph that has changed."""
    is_cheap.cache_clear()


def _is_widened(node: Node) -> bool:
    """Whether a value takes more memory than another of as many elements that it is computed of by pointwise ops alone."""
    own, stack, seen = tensor_of(node), [node], set[Node]()
    count = _count(sizes_of(own))
    while stack:
        for x in stack.pop().all_input_nodes:
            tensor = x.meta.get("val")
            if isinstance(tensor, torch.Tensor) and x not in seen and _count(sizes_of(tensor)) == count:
                if tensor.is_floating_point() and tensor.itemsize < own.itemsize:
                    return True
                seen.add(x)
                stack += [x] if kind_of(x) in ("pointwise", "view") else []
    return False


def recomputed(nodes: Sequence[Node], cheap: set[Node]) -> set[Node]:
    """The cheap ones of a region's nodes, in order, that what is outside of it uses: they stay there, too."""
    own, found = set(nodes), set[Node]()
    for node in reversed(nodes):
        if node in cheap and any(user not in own or user in found for user in node.users):
            found.add(node)
    return found


def is_view(node: Node) -> bool:
    """Whether a node computes nothing."""
    schema = getattr(node.target, "_schema", None)
    return kind_of(node) == "view" or bool(schema and schema.returns and schema.returns[0].alias_info)


def bytes_of(node: Node) -> int:
    """What a node's result takes of memory, by the sizes that symbols had as the graph was made."""
    tensor = tensor_of(node)
    return math.prod(map(hint, tensor.shape)) * tensor.itemsize
