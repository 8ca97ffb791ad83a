"""Dispatch by buckets: after what is known of the very size, before the nearest; only of current kernels, verified here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kgen
from kgen.dsl.family import normalised
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import TARGETS
from kgen.runtime import buckets, dispatch
from kgen.tuner import records
from kgen.tuner.candidates import Candidates
from kgen.tuning_db import NewBucket, Store, TrialRecord, all_buckets, open_store, set_buckets

H200 = TARGETS["H200"]
GPU = records.gpu_facts(H200)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tuning.sqlite") as opened:
        yield opened


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing comes with kgen but what a test ships."""
    monkeypatch.setattr(dispatch, "shipped", lambda gpu, digest, sizes: ())
    monkeypatch.setattr(buckets, "shipped_buckets", lambda gpu: ())
    buckets.shipped.cache_clear()
    yield
    buckets.shipped.cache_clear()


def another(problem: Problem) -> Schedule:
    """A valid config that is not the default."""
    default = dispatch.default(problem, H200).config
    return next(c for c in Candidates(normalised(problem), H200).ranking if c != default)


def tried(store: Store, problem: Problem, config: Schedule, **changes: Any) -> int:
    normal = normalised(problem)
    times = {"seconds": 1e-5, "lower": 1e-5, "upper": 1e-5, "samples": 9}
    if changes.get("origin") == "modelled":
        times = {"modelled_seconds": 1e-5}
    given = {"source_digest": config.source(normal).digest, "origin": "measured", **times, **changes}
    trial = TrialRecord(records.config_text(config), status="ok", **given)
    number: int = store.add_trial(GPU, records.toolchain(), records.problem_key(normal), trial)
    return number


def put(
    store: Store, problem: Problem, config: Schedule, spans: dict[str, str], space: str = "", **changes: Any
) -> None:
    """Stores a bucket whose config was timed at this problem."""
    evidence = {"operands": problem.key}
    set_buckets(store, [NewBucket(tried(store, problem, config, **changes), spans, evidence)], space)


def product(M: int, **options: Any) -> Problem:
    return kgen.hgemm.problem(M=M, N=512, K=512, **options)


SPANS = {"M": "129..512", "N": "512", "K": "512"}


def test_a_size_in_a_bucket_gets_its_config_and_is_told_so(store: Store) -> None:
    config = another(product(512))
    put(store, product(512), config, SPANS)
    for M in (129, 200, 512):
        choice = dispatch.choose(product(M), H200, store)
        assert (choice.config, choice.how) == (config, "bucket")
        assert choice.told.startswith("bucket: measured on H200, 2")
        assert "for M=129..512, N=512, K=512, by kgen" in choice.told
    for other in (product(128), product(513), product(200, layouts={"a": "col"}), product(200, dtype="bf16")):
        assert dispatch.choose(other, H200, store).how == "default"
    assert dispatch.choose(product(200), TARGETS["A10"], store).how == "default"


def test_steps_and_lists_serve_the_sizes_that_they_name(store: Store) -> None:
    config = another(product(512))
    put(store, product(512), config, SPANS | {"M": "64..512:64"})
    put(store, product(8), config, SPANS | {"M": "1,8"})
    asked = (1, 2, 8, 9, 63, 64, 65, 128, 512, 576)
    assert [M for M in asked if dispatch.choose(product(M), H200, store).how == "bucket"] == [1, 8, 64, 128, 512]


def test_the_very_size_comes_before_and_the_nearest_after(store: Store) -> None:
    config, default = another(product(512)), dispatch.default(product(300), H200).config
    store.set_best(tried(store, product(300), default))
    put(store, product(512), config, SPANS)
    assert [dispatch.choose(product(M), H200, store).how for M in (300, 301)] == ["tuned", "bucket"]
    assert dispatch.choose(product(301), H200, store).config == config


def test_a_bucket_of_another_kernel_or_not_verified_here_is_passed_over(store: Store) -> None:
    config = another(product(512))
    put(store, product(512), config, SPANS, source_digest="ab" * 32)
    assert dispatch.choose(product(200), H200, store).how == "default"
    put(store, product(512), config, SPANS, verified=False)
    assert dispatch.choose(product(200), H200, store).how == "default"
    put(store, product(512), config, SPANS)
    assert dispatch.choose(product(200), H200, store).how == "bucket"


def test_measured_buckets_come_before_shipped_and_these_before_modelled(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, default = another(product(512)), dispatch.default(product(200), H200).config
    put(store, product(512), config, SPANS)
    packed = tuple(replace(r, trial=replace(r.trial, verified=False)) for r in all_buckets(store, GPU, "measured"))
    store.remove(operator="hgemm")
    assert dispatch.choose(product(200), H200, store).how == "default"
    monkeypatch.setattr(buckets, "shipped_buckets", lambda gpu: packed)
    buckets.shipped.cache_clear()
    assert dispatch.choose(product(200), H200, None).config == config
    put(store, product(512), default, SPANS, origin="modelled")
    assert dispatch.choose(product(200), H200, store).config == config
    put(store, product(512), default, SPANS)
    assert dispatch.choose(product(200), H200, store).config == default


def test_a_config_that_is_not_valid_at_a_size_leaves_it_to_others(store: Store) -> None:
    """A product whose transposed operand has rows of M elements: only some M have rows that TMA takes."""
    problem = product(512, layouts={"a": "col"})
    config = dispatch.default(problem, H200).config
    put(store, problem, config, SPANS)
    found = {M: dispatch.choose(product(M, layouts={"a": "col"}), H200, store) for M in (201, 256)}
    assert (found[256].how, found[256].config) == ("bucket", config)
    assert found[201].how in ("default", "nearest")
    assert found[201].config != config


@pytest.mark.parametrize("N", [512, 1000, 2048])
def test_a_source_that_holds_the_size_is_current_where_it_was_timed(store: Store, N: int) -> None:
    """A row kept in registers: the kernel's text has its length, and differs from size to size."""
    timed = kgen.softmax.problem(leading=64, N=1024)
    config = dispatch.default(timed, H200).config
    asked = kgen.softmax.problem(leading=(2, 5), N=N)
    assert config.source(normalised(asked)).digest != config.source(normalised(timed)).digest
    put(store, timed, config, {"n0": "1..4096", "n1": "8..4096:8"})
    choice = dispatch.choose(asked, H200, store)
    assert (choice.how, choice.config) == ("bucket", config)
    put(store, timed, config, {"n0": "1..4096", "n1": "8..4096:8"}, source_digest="ab" * 32)
    assert dispatch.choose(asked, H200, store).how == "default"


@pytest.mark.parametrize(
    "written", ["", "x", "x:f16[64,1024]row", "x:f16[64,-1]row out:f16[64,1024]row", "x:f16[]row y:f16[3]col"]
)
def test_a_bucket_whose_problem_cannot_be_made_is_passed_over(store: Store, written: str) -> None:
    timed = kgen.softmax.problem(leading=64, N=1024)
    number = tried(store, timed, dispatch.default(timed, H200).config)
    set_buckets(store, [NewBucket(number, {"n0": "1..4096", "n1": "8..4096:8"}, {"operands": written})])
    assert dispatch.choose(kgen.softmax.problem(leading=7, N=512), H200, store).how == "default"


def test_a_restricted_operator_takes_buckets_of_its_space_and_members_of_all(store: Store) -> None:
    problem = product(512)
    config = next(c for c in Candidates(normalised(problem), H200).ranking if type(c).__name__ == "WgmmaGemm")
    put(store, problem, config, SPANS)
    mine, other = kgen.hgemm.using(BM=config.BM), kgen.hgemm.using(BM=64 if config.BM != 64 else 128)  # type: ignore[attr-defined]
    assert dispatch.choose(product(200), H200, store, mine.restriction).how == "bucket"
    assert dispatch.choose(product(200), H200, store, other.restriction).how == "default"
