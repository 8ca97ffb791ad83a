"""torch's graph with kgen's operators in the place of regions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node

from kgen.dsl.errors import KgenError
from kgen.dsl.family import family_of, has_kernel
from kgen.dsl.operator import Graph, Operator
from kgen.runtime.autograd import torch_op
from kgen.runtime.backend import attention
from kgen.runtime.backend.aten import ANCHORS, Untaken
from kgen.runtime.backend.growth import grown
from kgen.runtime.backend.regions import (
    Region,
    changed,
    comparable,
    is_view,
    kind_of,
    location,
    op_name,
    problem_of,
    sizes_of,
    tensor_of,
)
from kgen.runtime.backend.report import Left, Report, Taken
from kgen.runtime.backend.views import made_node, sink
from kgen.runtime.dispatch import COMMANDS
from kgen.runtime.library import hint
from kgen.runtime.operator import KernelOperator
from kgen.runtime.registry import of_key

#: Whether nodes on a device are kgen's.
Wanted = Callable[[torch.device], bool]

#: What errors of definitions begin with.
_LINE = re.compile(r"^\S*:\d+: ")
#: Operators by their graphs: those of one graph are one.
_operators: dict[Graph, KernelOperator] = {}


def transform(gm: GraphModule, wanted: Wanted, report: Report) -> None:
    """Puts kgen's operators into a graph of ATen's ops, without mutation, for what is on the devices that are `wanted`."""
    graph, why = gm.graph, dict[Node, str]()
    report.graphs.append(f"graph {len(report.graphs)}")
    report.taken += [_called(node, len(report.graphs) - 1) for node in graph.nodes if _namespace(node) == "kgen"]
    with detect_fake_mode([node.meta.get("val") for node in graph.nodes]) or nullcontext():
        sink(graph)
        for node in [n for n in graph.nodes if attention.is_attention(n)]:
            with _noted(why, node):
                _check_device(node, wanted)
                _attend(node, attention.arguments_of(node), report)
        for kind in ANCHORS:
            for node in [n for n in graph.nodes if kind_of(n) == kind]:
                place = {n: k for k, n in enumerate(graph.nodes)}
                if node in place:
                    with _noted(why, node):
                        _check_device(node, wanted)
                        _replace(grown(node, place), report)
    graph.eliminate_dead_code()
    changed()
    gm.recompile()
    report.left += [left for node in graph.nodes if (left := _left(node, why, len(report.graphs) - 1))]


@contextmanager
def _noted(why: dict[Node, str], node: Node) -> Iterator[None]:
    """Keeps why a node is left."""
    try:
        yield
    except (Untaken, KgenError) as error:
        why[node] = _LINE.sub("", str(error))


def _check_device(node: Node, wanted: Wanted) -> None:
    value = node.meta["val"]
    device = (value[0] if isinstance(value, (tuple, list)) else tensor_of(node)).device
    if not wanted(device):
        raise Untaken(f"it is on the device {device.type}")


def _attend(node: Node, arguments: tuple[Any, ...], report: Report) -> None:
    graph = node.graph
    with graph.inserting_before(node):
        made = made_node(graph, attention.OP, arguments, node)
        for user in list(node.users):
            part = made_node(graph, operator.getitem, (made, user.args[1]), user) if user.args[1] in (0, 1) else None
            if part is not None:
                user.replace_all_uses_with(_laid_out(part, user))
            graph.erase_node(user)
    graph.erase_node(node)
    of = ", ".join(_told(x) for x in arguments[:3])
    where = str(location(made))
    number = len(report.graphs) - 1
    report.taken.append(Taken(number, "attention", "attention", (op_name(node),), of, where))


def _laid_out(node: Node, like: Node) -> Node:
    """A node of the strides of another: torch has seen these, and has made views by them."""
    own, wanted = tensor_of(node), tensor_of(like)
    kept = [axis for axis, n in enumerate(sizes_of(own)) if n != 1]
    if all(a == b for a, b in [(comparable(x.stride()[k] for x in (own, wanted))) for k in kept]):
        return node
    order = sorted(range(wanted.dim()), key=lambda axis: -hint(wanted.stride(axis)))
    graph, permute = node.graph, torch.ops.aten.permute.default
    ordered = made_node(graph, permute, (node, order), like)
    dense = made_node(graph, torch.ops.aten.clone.default, (ordered,), like, {"memory_format": torch.contiguous_format})
    return made_node(graph, permute, (dense, [order.index(axis) for axis in range(len(order))]), like)


def _replace(region: Region, report: Report) -> None:
    """Puts a call of the region's operator in the place of its nodes."""
    graph, operator_ = region.nodes[0].graph, _operator(region.graph)
    with graph.inserting_before(region.nodes[-1].next):
        call = found = made_node(graph, torch_op(operator_), region.inputs, region.nodes[-1])
        for k, (node, value) in enumerate(zip(region.outputs, region.values)):
            found = call if len(region.outputs) == 1 else made_node(graph, operator.getitem, (call, k), node)
            rank = len(value.expr.shape.dims)
            gone = [a for a in range(-rank, 0) if a not in value.axes]
            if gone:
                found = made_node(graph, torch.ops.aten.squeeze.dims, (found, gone), node)
            node.replace_all_uses_with(found)
    _sort(region.nodes[0], call, found)
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)
    of = f"{', '.join(map(_told, region.inputs))} -> {', '.join(map(_told, region.outputs))}"
    ops = tuple(op_name(n) for n in region.nodes if kind_of(n) != "view")
    family, made = family_of(region.graph).name, region.graph
    report.taken.append(Taken(len(report.graphs) - 1, made.name, family, ops, of, str(made.where), problem_of(region)))


def _sort(first: Node, call: Node, last: Node) -> None:
    """Moves the users of a call's results that stand before it, from `first` on, behind the `last` of these, in their order."""
    late, node = {call}, call
    while node is not last:
        node = node.next
        late.add(node)
    moved, node = list[Node](), first
    while node is not call:
        if not late.isdisjoint(node.all_input_nodes):
            late.add(node)
            moved.append(node)
        node = node.next
    for node in reversed(moved):
        last.append(node)


def _operator(graph: Graph) -> KernelOperator:
    if graph not in _operators:
        COMMANDS[graph.digest] = "kgen.runtime.backend.tune(kgen.runtime.backend.explain(model, *inputs))"
        _operators[graph] = KernelOperator(Operator.of_graphs([graph], f"{graph.name} of a model.", {}))
    return _operators[graph]


def _namespace(node: Node) -> str:
    return getattr(node.target, "namespace", "")


def _called(node: Node, number: int) -> Taken:
    """A call of kgen's in the model itself, or of a gradient of that."""
    operator_ = of_key(op_name(node))
    family = family_of(graph).name if has_kernel(graph := operator_.definition.graphs[0]) else "several launches"
    tensors = [x for x in node.all_input_nodes if isinstance(x.meta.get("val"), torch.Tensor)]
    return Taken(number, operator_.__name__, family, (), ", ".join(map(_told, tensors)), str(location(node)))


def _told(node: Any) -> str:
    """A tensor's dtype and shape."""
    tensor = tensor_of(node)
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def _left(node: Node, why: dict[Node, str], number: int) -> Left | None:
    """What is said of a node that stays; None of kgen's own, of views, and of what computes no tensor."""
    kind = kind_of(node)
    if node.op != "call_function" or is_view(node) or _namespace(node) in ("kgen", ""):
        return None
    reason = why.get(node, "joins nothing that kgen has a kernel for" if kind else "no expression of kgen's language")
    return Left(number, op_name(node), reason, str(location(node)), kind == "pointwise")
