"""The source of every operator compiles, without a warning, for every architecture that a schedule of its claims."""

from __future__ import annotations

import functools

import pytest
from compiled import compile_for
from operators import LAUNCHES, every_dtype, small

from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.operator import Graph
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu.binary import Binary
from kgen.gpu.target import resolve
from kgen.runtime import dispatch

#: The newest first.
ARCHITECTURES = ("sm_120", "sm_100a", "sm_90a", "sm_89", "sm_86", "sm_80", "sm_75")


def chosen(graph: Graph, target: Target) -> Schedule | None:
    """The config for a small problem; None where no schedule claims the architecture for these dtypes."""
    problem = family_of(graph).normalise(small(graph))
    there = [s for s in family_of(graph).schedules if s.target.runs_on(target.arch) and s.applies(problem)]
    try:
        return dispatch.default(problem, target).config
    except ConfigError:
        if any(s.by_default and "dtype_of_the_target" not in s.rules for s in there):
            raise
        return None


def served(name: str) -> dict[str, tuple[Graph, Schedule]]:
    """For each architecture that has them, in turn, the operator's next dtypes, so that all come up, and the config for these;
    where it lacks those, the next that it has."""
    graphs, found = every_dtype(LAUNCHES[name].definition.graphs), {}
    for number, arch in enumerate(ARCHITECTURES):
        turn = graphs[number % len(graphs) :] + graphs[: number % len(graphs)]
        pairs = ((graph, chosen(graph, resolve(arch))) for graph in turn)
        first = next(((graph, config) for graph, config in pairs if config is not None), None)
        if first is not None:
            found[arch] = first
    return found


#: So many launches are compiled together.
_TOGETHER = 8
_NAMES = [*LAUNCHES]


@functools.cache
def compiled(group: int) -> dict[tuple[str, str], tuple[Schedule, Binary]]:
    """By launch and architecture, the configs and what was made of them."""
    some = {name: served(name) for name in _NAMES[group * _TOGETHER : (group + 1) * _TOGETHER]}
    found = {}
    for arch in ARCHITECTURES:
        there = {name: pairs[arch] for name, pairs in some.items() if arch in pairs}
        sources = [config.source(family_of(graph).normalise(small(graph))) for graph, config in there.values()]
        binaries = compile_for(resolve(arch).arch, sources)
        found |= {(n, arch): (config, binary) for (n, (_, config)), binary in zip(there.items(), binaries)}
    return found


@pytest.mark.parametrize("name", LAUNCHES)
def test_source_compiles_for_every_architecture(name: str) -> None:
    graphs = every_dtype(LAUNCHES[name].definition.graphs)
    found = compiled(_NAMES.index(name) // _TOGETHER)
    archs = [arch for arch in ARCHITECTURES if (name, arch) in found]
    for config, binary in (found[name, arch] for arch in archs):
        assert binary.warnings == (), config
        assert binary.fatal_warnings == ()
        assert binary.registers > 0
    claimed = [
        s.target for s in family_of(graphs[0]).schedules if s.by_default and s.applies(normalised(small(graphs[0])))
    ]
    if all(target.variant for target in claimed):  # attention of e4m3 alone: wgmma is Hopper's
        assert archs == [str(target) for target in claimed]
        return
    # What an architecture has, all after it have; only fp8 begins as late as sm_89.
    assert tuple(archs) == ARCHITECTURES[: len(archs)]
    assert len(archs) >= 4
