"""Evaluates a graph for some places of its leading dimensions at a time, where its values are large."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kgen.dsl.operator import Graph
from kgen.dsl.ops import OPS
from kgen.dsl.size import symbols_of
from kgen.numerics.values import Arithmetic

#: The elements that the largest value of a part may have, unless one place has more. In float64 that is what the caches of a
#: core hold, and so little that the allocator keeps the memory: what is larger the system clears anew for each value, which
#: takes longer than most ops do.
_LARGEST = 1 << 20


def by_parts(
    graph: Graph, tensors: Mapping[str, Tensor], how: Arithmetic, run: Callable[[dict[str, Tensor]], list[Tensor]]
) -> list[Tensor] | None:
    """The results, of `run` on parts of the operands, cut along the longest leading dimension; `how` knows their sizes.

    None where all values are small already, their sizes are not known, or a result at one place is not computed of that place
    alone.
    """
    specs = (*graph.inputs, *graph.outputs)
    if not all(symbols_of(d) <= how.sizes.keys() for node in graph.nodes for d in node.shape.dims):
        return None  # operands of another shape, whose sizes are not told
    length, elements = max(how.leading, default=1), max(math.prod(how.shape(node)) for node in graph.nodes)
    if elements <= _LARGEST or length == 1 or _mixes(graph) or any(spec.name not in tensors for spec in specs):
        return None
    step = max(1, length * _LARGEST // elements)
    # Counted from the end: operands need not have all leading dimensions.
    before = how.leading.index(length) - len(how.leading)
    axes = {spec.name: before - len(spec.shape.dims) for spec in specs if spec.shape.leading}
    cut = {n: axis for n, axis in axes.items() if tensors[n].dim() >= -axis and tensors[n].shape[axis] == length}
    found = []
    for begin in range(0, length, step):
        count = min(step, length - begin)
        found.append(run({**tensors, **{n: tensors[n].narrow(axis, begin, count) for n, axis in cut.items()}}))
    pieces = zip(graph.outputs, zip(*found))
    return [torch.cat(own, axes[spec.name]) if spec.name in cut else own[0] for spec, own in pieces]


def _mixes(graph: Graph) -> bool:
    """Whether some value is computed of several leading places, or of where they are."""
    places = any(OPS[node.op].kind == "external" or node.op == "random" for node in graph.nodes)
    return places or any(a.shape.leading and not node.shape.leading for node in graph.nodes for a in node.args)
