"""What the suite's cases cover, all groups together: each value of each field, and nearly every pair of values."""

from __future__ import annotations

import itertools
import random

import pytest
from cases import TARGET, draw, known_values
from suite import GROUPS, cases_of, names

from kgen.dsl.choice import Value
from kgen.dsl.schedule import Schedule

Pair = frozenset[tuple[str, Value]]


def pairs(config: Schedule) -> set[Pair]:
    return {frozenset(pair) for pair in itertools.combinations(config.values.items(), 2)}


@pytest.mark.parametrize(
    "prefix",
    [
        "Elementwise",
        "SimtGemm",
        "MmaGemm",
        "Gemv",
        "Transpose",
        "Rowwise",
        "Scan",
        "Reduce",
        "ColumnStats",
        "ChannelStats",
        "Gather",
        "GatherSum",
        "ScatterAdd",
        "ScatterBins",
        "ScatterRows",
    ],
)
def test_values_and_pairs_of_values(prefix: str) -> None:
    groups = names(prefix)
    schedule = GROUPS[groups[0]].schedule
    configs = [case.config for name in groups for case in cases_of(name)]
    seen = {item for config in configs for item in config.values.items()}
    assert seen == set(known_values(schedule))
    found = set().union(*map(pairs, configs))
    # What other draws, on the same problems, come across.
    source = random.Random(prefix)
    possible: set[Pair] = set()
    for case in itertools.chain.from_iterable(cases_of(name) for name in groups):
        other = draw(schedule, case.problem, TARGET, source, {})
        possible |= pairs(other) if other else set()
    assert len(possible) > 100
    assert len(possible & found) > 0.95 * len(possible), f"{len(possible - found)} of {len(possible)} pairs are missing"


@pytest.mark.parametrize("prefix", ["SimtGemm", "MmaGemm"])
def test_every_layout_of_every_dtype_has_every_shape(prefix: str) -> None:
    for name in names(prefix):
        for axis in "MNK":
            shown = {case.traits.get(axis) for case in cases_of(name)} - {None}
            missing = set(GROUPS[name].traits[axis]) - shown
            assert not missing, f"{name}: no case has {axis} of {', '.join(sorted(missing))}"


def test_every_layout_of_every_dtype_has_every_number_of_vectors_on_both_sides() -> None:
    for name in names("Gemv"):
        for trait in ("side", "count", "outer", "K"):
            shown = {case.traits.get(trait) for case in cases_of(name)} - {None}
            missing = set(GROUPS[name].traits[trait]) - shown
            assert not missing, f"{name}: no case has {trait} {', '.join(sorted(missing))}"


def test_cases_are_the_same_each_time() -> None:
    name = names("MmaGemm")[0]
    assert list(map(str, GROUPS[name].cases())) == list(map(str, cases_of(name)))
