"""An export of a range takes its buckets: a launch at any size inside takes the config of the size's own bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from export_samples import H200

import kgen
from kgen.dsl.family import normalised
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.span import Span
from kgen.export import Entry
from kgen.export.collection import collect
from kgen.export.interface import Interface
from kgen.runtime.ranges import corners
from kgen.tuner import records
from kgen.tuner.candidates import Candidates
from kgen.tuner.division import Point
from kgen.tuning_db import NewBucket, Store, TrialRecord, open_store, set_buckets

BUCKETS = ("1..7", "8..130", "131..512", "600..4096")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tuning.sqlite") as opened:
        yield opened


def product(sizes: Point) -> Problem:
    return kgen.hgemm.problem(M=sizes[0], N=512, K=512)


@pytest.fixture
def stored(store: Store) -> dict[str, Schedule]:
    """A config of its own for each bucket, some kernels apart from each other."""
    ranked = [c for c in Candidates(normalised(product((512,))), H200).ranking if type(c).__name__ == "WgmmaGemm"]
    chosen: list[Schedule] = []
    for config in ranked:
        if not config.broken(normalised(product((1,))), H200) and all(
            config.values["BN"] != c.values["BN"] for c in chosen
        ):
            chosen.append(config)
    new = []
    for text, config in zip(BUCKETS, chosen):
        timed = product((Span.parse(text).high,))
        normal = normalised(timed)
        trial = TrialRecord(
            records.config_text(config), "ok", "measured", config.source(normal).digest, 1e-5, 1e-5, 1e-5, 9
        )
        number = store.add_trial(records.gpu_facts(H200), records.toolchain(), records.problem_key(normal), trial)
        new.append(NewBucket(number, {"M": text, "N": "512", "K": "512"}, {"operands": timed.key}))
    set_buckets(store, new)
    return dict(zip(BUCKETS, chosen))


def found(store: Store, *spans: str) -> dict[int, tuple[str, Schedule]]:
    """The corners by M."""
    parsed = [Span.parse(text) for text in spans]
    return {p.sizes["M"]: (c.how, c.config) for p, c in corners(["M"], parsed, product, H200, store)}


def test_the_corners_of_a_range_are_the_ends_of_its_buckets(store: Store, stored: dict[str, Schedule]) -> None:
    ends = found(store, "1..8192")
    assert {*ends} == {1, 7, 8, 130, 131, 512, 600, 4096}
    assert all(ends[Span.parse(text).low] == ("bucket", config) for text, config in stored.items())
    assert all(ends[Span.parse(text).high] == ("bucket", config) for text, config in stored.items())
    assert {*found(store, "100..200")} == {100, 130, 131, 200}
    assert {*found(store, "64..4096:64")} == {64, 128, 192, 512, 640, 4096}
    assert {*found(store, "5,550,700,9000")} == {5, 700}
    assert found(store, "513..599") == {}


def test_a_launch_takes_the_config_of_its_bucket(store: Store, stored: dict[str, Schedule]) -> None:
    entries = [Entry(p, c.config) for p, c in corners(["M"], [Span.parse("1..4096")], product, H200, store)]
    f = Interface(collect(entries, H200))
    assert len({entry.config for entry in entries}) == 4
    aligned = dict.fromkeys(("a", "b", "out"), 16)
    for text, config in stored.items():
        for M in Span.parse(text):
            number = f.decision.pick({"M": M, "N": 512, "K": 512, "a_sm": 512, "b_sk": 512, "out_sm": 512}, aligned)
            assert number is not None
            assert f.collection.kernels[number].config == config, M
