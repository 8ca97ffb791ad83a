"""Graphs whose sums of floats may be made in any order (`Graph.unordered`), which takes some fewer launches."""

from __future__ import annotations

import functools
from dataclasses import replace

from kgen.dsl.gradient import launch_count
from kgen.dsl.operator import Graph

_SUFFIX = "_unordered"


def unordered(graph: Graph) -> Graph:
    """The graph whose sums may be made in any order."""
    return graph if graph.unordered else replace(graph, name=graph.name + _SUFFIX, unordered=True)


def ordered(graph: Graph) -> Graph:
    """The graph whose results are the same from run to run."""
    return replace(graph, name=graph.name.removesuffix(_SUFFIX), unordered=False) if graph.unordered else graph


@functools.lru_cache(maxsize=1024)
def is_spared(graph: Graph) -> bool:
    """Whether launches are spared where sums may be made in any order."""
    return launch_count(unordered(graph)) < launch_count(ordered(graph))
