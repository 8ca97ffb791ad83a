"""How a region grows around a product, a reduction or a look-up: by one neighbour after the other, while one kernel serves it."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from torch.fx import Node

from kgen.dsl.errors import KgenError
from kgen.runtime.backend.aten import Untaken
from kgen.runtime.backend.regions import Region, build, bytes_of, changed, is_cheap, is_view, kind_of, recomputed

#: The most nodes of a region: what is tried of a graph grows with their square.
_MOST_NODES = 64


def grown(anchor: Node, place: Mapping[Node, int]) -> Region:
    """The largest region around a node that is found by taking in one neighbour after the other.

    Raises Untaken where not even the node itself is one.
    """
    changed()
    region = build(_closed({anchor}), place)
    refused = set[Node]()
    while len(region.nodes) < _MOST_NODES:
        own = frozenset(region.nodes)
        for candidate in _neighbours(region, place):
            if candidate in refused or not _joins(candidate, anchor):
                continue
            more = _closed({*own, candidate})
            try:
                if is_convex(more, place):
                    tried = build(more, place)
                    if kind_of(anchor) != "product" or _is_worth(candidate, region, tried):
                        region, refused = tried, set()
                        break
            except (Untaken, KgenError):
                pass
            refused.add(candidate)
        else:
            break
    return region


def _is_worth(node: Node, before: Region, after: Region) -> bool:
    """Whether a product's kernel should compute a node, too: not what a reduction has at no cost, where that is more to write."""
    sizes = [sum(map(bytes_of, region.outputs)) for region in (before, after)]
    return sizes[1] <= sizes[0] or not is_for_reduction(node)


def is_for_reduction(node: Node) -> bool:
    """Whether a reduction takes a value, or what is pointwise of it, that no product takes from memory."""
    stack, seen = [node], {node}
    while stack:
        users = list(stack.pop().users)
        for user in users:
            if is_view(user):
                users += [u for u in user.users if u not in users]
        if any(kind_of(user) == "product" for user in users):
            continue
        if any(kind_of(user) == "reduction" for user in users):
            return True
        stack += [u for u in users if kind_of(u) == "pointwise" and u not in seen]
        seen.update(users)
    return False


def _joins(node: Node, anchor: Node) -> bool:
    """Whether a node may be in the region of an anchor: what is pointwise, and with a reduction others."""
    kind = kind_of(node)
    return kind in ("pointwise", "view") or kind == kind_of(anchor) == "reduction"


def _closed(nodes: set[Node]) -> frozenset[Node]:
    """With the results of nodes that have several, and of what such a result is of."""
    for node in list(nodes):
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            nodes.add(node.args[0])
    for node in list(nodes):
        if isinstance(node.meta.get("val"), (tuple, list)):
            nodes.update(node.users)
    return frozenset(nodes)


def _neighbours(region: Region, place: Mapping[Node, int]) -> list[Node]:
    """Those who use a region's nodes, and then what it reads; the nearest first."""
    own = set(region.nodes)
    users = {user for node in region.nodes for user in node.users if user not in own and user in place}
    return [*sorted(users, key=place.__getitem__), *sorted(region.inputs, key=place.__getitem__, reverse=True)]


def is_convex(nodes: frozenset[Node], place: Mapping[Node, int]) -> bool:
    """Whether nothing that the nodes read is computed of their results; what is cheap is computed again outside."""
    last = max(place[node] for node in nodes)
    cheap = set(filter(is_cheap, nodes))
    again = recomputed(sorted(nodes, key=place.__getitem__), cheap)
    stack = [user for node in nodes - cheap for user in node.users if user not in nodes or user in again]
    seen = set(stack)
    while stack:
        node = stack.pop()
        for user in node.users:
            if user in nodes and node not in nodes:
                return False
            if user not in seen and (user not in nodes or user in again) and place[user] < last:
                seen.add(user)
                stack.append(user)
    return True
