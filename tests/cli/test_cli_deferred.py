"""kgen tune --deferred: what captures have noted is tuned, and taken off where it was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_runs import Kgen

from kgen.cli.problems import find_operator
from kgen.dsl.problem import Problem
from kgen.dsl.target import TARGETS
from kgen.runtime import deferred, tuning
from kgen.runtime.dispatch import Choice
from kgen.runtime.plan import Plan
from kgen.tuner.records import gpu_facts
from kgen.tuning_db import DeferredRecord, open_store

H200 = TARGETS["H200"]


@pytest.fixture
def noted(kgen: Kgen, tmp_path: Path, user_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with a note of a shipped operator of two launches, and one of a file's, on an H200."""
    monkeypatch.setattr("kgen.tuner.modelled.COMPILED", 1)
    monkeypatch.setattr("kgen.tuner.modelled.VERIFIED", 1)
    for place, sizes in (("group_norm", {"B": 2, "G": 2, "C": 4, "S": 16}), (f"{user_file}:scaled", {"M": 4, "N": 8})):
        operator = find_operator(place)
        plan = Plan(Problem.dense(operator.definition.graphs[0], sizes), torch.device("cpu"))
        plan.choices = [Choice(None, "default")]  # type: ignore[arg-type]
        deferred.note(operator, plan, H200)
    return tmp_path / "tuning.sqlite"


def left(path: Path) -> list[DeferredRecord]:
    with open_store(path) as store:
        return store.deferred()


def test_what_is_noted_is_tuned(kgen: Kgen, noted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = kgen("tune", "--deferred", "--gpu", "H200", "--budget", "1", "--json")
    assert ran.code == 0
    told = ran.json
    assert told["operator"] is None
    problems = [result["problem"].partition("(")[0] for result in told["results"]]
    assert problems == ["group_norm_1", "group_norm_2", "scaled"]
    assert len(left(noted)) == 2  # nothing was measured
    real = tuning.tune

    def measured(*arguments: object, **named: object) -> object:
        outcome = real(*arguments, **named)  # type: ignore[arg-type]
        times = {"seconds": 1e-5, "lower": 9e-6, "upper": 2e-5, "samples": 9, "modelled_seconds": None}
        return replace(outcome, trial=replace(outcome.trial, origin="measured", **times))

    monkeypatch.setattr(tuning, "tune", measured)
    ran = kgen("tune", "--deferred", "--gpu", "H200", "--budget", "1")
    assert ran.code == 0
    assert left(noted) == []
    assert kgen("tune", "--deferred", "--gpu", "H200", "--json").json["results"] == []


def test_notes_of_other_gpus_and_of_files_that_are_gone_stay(kgen: Kgen, noted: Path, user_file: Path) -> None:
    user_file.unlink()
    ran = kgen("tune", "--deferred", "--gpu", "L4", "--json")
    assert ran.json["results"] == []
    assert "2 problems are deferred on other GPUs" in ran.err
    ran = kgen("tune", "--deferred", "--gpu", "H200", "--budget", "1")
    assert "scaled of " in ran.err
    assert "is left out: no file" in ran.err
    assert len(left(noted)) == 2


def test_a_note_of_an_operator_that_has_changed_is_taken_off(kgen: Kgen, noted: Path, user_file: Path) -> None:
    user_file.write_text(user_file.read_text().replace("x * scale", "x + scale"))
    with open_store(noted) as store:
        store.settle(store.deferred()[0].id)
    ran = kgen("tune", "--deferred", "--gpu", "H200", "--json")
    assert "has no scaled any more as it was noted" in ran.err
    assert left(noted) == []


@pytest.mark.parametrize(
    "arguments", [[], ["gelu", "--deferred"], ["--deferred", "--shape", "64"], ["--deferred", "--backward"]]
)
def test_an_operator_or_deferred(kgen: Kgen, arguments: list[str]) -> None:
    ran = kgen("tune", *arguments, "--gpu", "H200")
    assert ran.code == 2
    assert "expected an operator with its options, or --deferred" in ran.err


def test_a_note_is_of_a_gpu(noted: Path) -> None:
    assert {record.gpu for record in left(noted)} == {gpu_facts(H200)}
