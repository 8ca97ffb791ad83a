"""Notes of problems that wait for tuning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import GpuFacts, ProblemKey, Store, Toolchain, TrialRecord, open_store


def test_a_problem_is_noted_once_a_gpu(store: Store, gpu: GpuFacts, problem: Callable[..., ProblemKey]) -> None:
    other = replace(gpu, name="NVIDIA H100")
    for facts, key, place in (
        (gpu, problem(), "hgemm"),
        (gpu, problem(), "hgemm"),
        (other, problem(), "hgemm"),
        (gpu, problem(M=3), "a folder/mine.py:hgemm"),
    ):
        store.defer(key, facts, place)
    found = store.deferred()
    assert [(r.gpu, r.problem, r.place) for r in found] == [
        (gpu, problem(), "hgemm"),
        (other, problem(), "hgemm"),
        (gpu, problem(M=3), "a folder/mine.py:hgemm"),
    ]
    assert store.check() == []
    assert store.problems() == []  # nothing was tried
    store.settle(found[0].id)
    store.settle(found[0].id)
    assert [r.id for r in store.deferred()] == [r.id for r in found[1:]]
    store.defer(problem(), gpu, "hgemm")  # met again
    assert len(store.deferred()) == 3


def test_notes_stay_when_trials_are_removed(
    store: Store,
    gpu: GpuFacts,
    toolchain: Toolchain,
    problem: Callable[..., ProblemKey],
    trial: Callable[..., TrialRecord],
) -> None:
    store.add_trial(gpu, toolchain, problem(), trial())
    store.defer(problem(), gpu, "hgemm")
    assert store.remove(operator="hgemm") == 1
    assert len(store.deferred()) == 1


@pytest.mark.parametrize("place", ["", 3, "x" * 5001])
def test_a_place_is_a_text(store: Store, gpu: GpuFacts, problem: Callable[..., ProblemKey], place: str) -> None:
    with pytest.raises(DatabaseError, match="place is"):
        store.defer(problem(), gpu, place)
    assert store.deferred() == []


def test_a_damaged_note_is_left_out_and_named(
    tmp_path: Path, gpu: GpuFacts, problem: Callable[..., ProblemKey]
) -> None:
    with open_store(tmp_path / "tuning.sqlite") as store:
        store.defer(problem(), gpu, "hgemm")
        store.defer(problem(M=3), gpu, "hgemm")
        with store.engine.begin() as connection:
            connection.execute(text("UPDATE deferred SET place = '' WHERE id = 1"))
        assert [r.problem.sizes["M"] for r in store.deferred()] == [3]
        assert any(line.startswith("row 1 of deferred: ") for line in store.check())
