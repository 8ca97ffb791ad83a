"""The source of every operator compiles, without a warning, for every architecture that a schedule of its claims."""

from __future__ import annotations

import pytest
from operators import LAUNCHES, every_dtype, small

from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.operator import Graph
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu.compile import compile
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


@pytest.mark.parametrize("name", LAUNCHES)
def test_source_compiles_for_every_architecture(name: str) -> None:
    """The next architecture in the operator's next dtypes, so that all come up; where it lacks those, in the next that it has."""
    graphs = every_dtype(LAUNCHES[name].definition.graphs)
    compiled = []
    for number, arch in enumerate(ARCHITECTURES):
        target = resolve(arch)
        turn = graphs[number % len(graphs) :] + graphs[: number % len(graphs)]
        found = next(((graph, config) for graph in turn if (config := chosen(graph, target)) is not None), None)
        if found is not None:
            graph, config = found
            source = config.source(family_of(graph).normalise(small(graph)))
            binary = compile(source, target.arch)
            assert binary.warnings == (), (arch, config)
            assert binary.fatal_warnings == ()
            assert binary.registers > 0
            compiled.append(arch)
    claimed = [
        s.target for s in family_of(graphs[0]).schedules if s.by_default and s.applies(normalised(small(graphs[0])))
    ]
    if all(target.variant for target in claimed):  # attention of e4m3 alone: wgmma is Hopper's
        assert compiled == [str(target) for target in claimed]
        return
    # What an architecture has, all after it have; only fp8 begins as late as sm_89.
    assert tuple(compiled) == ARCHITECTURES[: len(compiled)]
    assert len(compiled) >= 4
