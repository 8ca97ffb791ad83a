"""Views out of the way: what is computed of a view of rows is computed of the rows, and viewed after.

A linear layer in torch's graph is a product of matrices between views, [B, S, N] to [B * S, N] and back. What follows, an
activation or a residual, sees the view; with the view behind it, it joins the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from kgen.runtime.backend.growth import is_for_reduction
from kgen.runtime.backend.regions import kind_of, sizes_of

_aten = torch.ops.aten
VIEWS = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)


def sink(graph: Graph) -> None:
    """Moves views of the rows of products below what is pointwise. New nodes have their tensors without memory, too."""
    rows = {node for node in graph.nodes if kind_of(node) == "product" and node.meta["val"].dim() == 2}
    flat = dict[Node, Node]()
    for node in [n for n in graph.nodes if kind_of(n) == "pointwise"]:
        if rows & set(node.all_input_nodes):
            rows |= {node} if node.meta["val"].dim() == 2 else set()
            continue
        view = next((x for x in node.all_input_nodes if _is_of_rows(x, rows)), None)
        if view is None or not _is_flat(node, view):
            continue
        if node.meta["val"].itemsize <= view.meta["val"].itemsize or not is_for_reduction(node):
            rows.add(_below(graph, node, view, flat))
    graph.eliminate_dead_code()


def _is_of_rows(node: Node, rows: set[Node]) -> bool:
    """Whether a node is a view of rows with other axes before the last."""
    if node.target not in VIEWS or node.args[0] not in rows:
        return False
    before, after = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return bool(after.dim() > 1 and isinstance(after.shape[-1], int) and before.shape[-1] == after.shape[-1])


def _is_flat(node: Node, view: Node) -> bool:
    """Whether a pointwise node of the view's shape is the same with rows in one axis."""
    tensors = [x for x in node.all_input_nodes if isinstance(x.meta.get("val"), torch.Tensor)]
    return all(_follows(x, view) for x in (*tensors, node)) and view.meta["val"].shape[-1] != 1


def _follows(operand: Node, view: Node) -> bool:
    """Whether an operand is of the view's shape and row-major, or of one row, or one number."""
    own = operand.meta["val"]
    return bool(own.dim() <= 1 or (_shape(operand) == _shape(view) and own.is_contiguous()))


def _shape(node: Any) -> tuple[Any, ...]:
    """The sizes, which are compared without a condition on symbols."""
    return sizes_of(node.meta["val"])


def _below(graph: Graph, node: Node, view: Node, flat: dict[Node, Node]) -> Node:
    """Puts a node above the view, with what is pointwise before it: of rows, the view is of its result.

    `flat` are nodes of rows by what they are of.
    """
    last = view.meta["val"].shape[-1]

    def of_rows(x: Any) -> Any:
        if not isinstance(x, Node) or x.meta["val"].dim() <= 1:
            return x
        if x.target in VIEWS and _shape(x.args[0]) == _shape(view.args[0]):
            return x.args[0]
        if x not in flat:
            if kind_of(x) == "pointwise" and _is_flat(x, view) and x.all_input_nodes:
                keywords = {name: of_rows(y) for name, y in x.kwargs.items()}
                flat[x] = made_node(graph, x.target, tuple(map(of_rows, x.args)), x, keywords)
            else:
                flat[x] = made_node(graph, _aten.reshape.default, (x, [-1, last]), x)
        return flat[x]

    with graph.inserting_before(node):
        made: Node = of_rows(node)
        shaped = made_node(graph, _aten.reshape.default, (made, view.args[1]), node)
    node.replace_all_uses_with(shaped)
    graph.erase_node(node)
    return made


def made_node(
    graph: Graph, target: Any, arguments: tuple[Any, ...], like: Node, keywords: dict[str, Any] | None = None
) -> Node:
    """A node of the same line as another, with its tensor: under the graph's fake mode."""
    made = graph.call_function(target, arguments, keywords or {})
    made.meta = {name: x for name, x in like.meta.items() if name != "val"}

    def value(x: Any) -> Any:
        return x.meta["val"] if isinstance(x, Node) else [value(y) for y in x] if isinstance(x, (list, tuple)) else x

    made.meta["val"] = target(*map(value, arguments), **{name: value(x) for name, x in (keywords or {}).items()})
    return made
