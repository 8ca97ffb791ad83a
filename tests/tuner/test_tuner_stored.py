"""What a run stores whatever happens to it: interrupts, kills, a machine that fails, results that are no numbers."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tuner_runs import Watcher, measure

from kgen import emulator
from kgen.dsl.errors import ArgumentError, CacheError, CompileError, ToolchainError
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.gpu.cache import CubinCache
from kgen.tuner import build as builds
from kgen.tuner import emulated, verify
from kgen.tuner.budget import Budget
from kgen.tuner.candidates import Candidates
from kgen.tuner.modelled import COMPILED, VERIFIED
from kgen.tuner.outcome import Outcome
from kgen.tuner.progress import Silent
from kgen.tuner.records import as_json, gpu_facts, problem_key
from kgen.tuner.run import time_of
from kgen.tuner.tune import tune
from kgen.tuner.verify import Verdict
from kgen.tuning_db import Store, TrialRecord


class Killed(BaseException):
    """As SIGKILL: nothing of kgen's handles it."""


class Stopped(Silent):
    """Raises once a trial is stored that is better than all before it, after `count` trials."""

    def __init__(self, kind: type[BaseException], count: int) -> None:
        self.kind, self.count = kind, count
        self.times: list[float] = []

    def trial(self, trial: TrialRecord, best: TrialRecord | None) -> None:
        before = min(self.times, default=float("inf"))
        self.times.append(time_of(trial))
        if len(self.times) > self.count and self.times[-1] < before:
            raise self.kind


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """No problems beyond 32 bits: these are about what is stored."""
    monkeypatch.setattr(emulated, "judge_far", lambda *_: iter(()))


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is emulated: every kernel is right."""
    monkeypatch.setattr(emulator, "compile", lambda source: None)
    monkeypatch.setattr(verify, "verify", lambda *_, **__: Verdict(True, {"max_error": 0.0}))


def best_stored(store: Store, problem: Problem, target: Target) -> TrialRecord:
    trials = store.trials(problem_key(problem), gpu_facts(target))
    return min((t for t in trials if t.status == "ok" and t.verified), key=time_of)


def is_stored(outcome: Outcome, store: Store, target: Target) -> None:
    """The outcome is the best that is stored, and the database says the same."""
    best = best_stored(store, outcome.problem, target)
    stored = store.best(problem_key(outcome.problem), gpu_facts(target))
    assert stored is not None
    assert outcome.trial.config == best.config == stored.trial.config
    assert time_of(outcome.trial) == time_of(best)


@pytest.mark.parametrize("threads", [1, 8])
def test_an_interrupted_run_names_the_best_that_is_stored(
    gelu: Problem,
    target: Target,
    store: Store,
    cubins: CubinCache,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
) -> None:
    """Ctrl-C comes as the best trial is stored, and before the search has heard of it."""
    monkeypatch.setenv("FAKE_WORKER", "good")
    monkeypatch.setattr(builds, "cores", lambda: threads + 1)
    slow_first = sorted(Candidates(gelu, target).ranking[:40], key=lambda c: c.threads != 1024)
    outcome = measure(
        gelu, target, store, cubins, log, Budget(trials=40), progress=Stopped(KeyboardInterrupt, 1), some=slow_first
    )
    assert outcome.interrupted
    is_stored(outcome, store, target)


def test_an_interrupted_run_without_a_gpu_names_the_best_that_is_stored(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, trusting: None
) -> None:
    progress = Stopped(KeyboardInterrupt, 0)
    outcome = tune(gelu, target=target, store=store, device=None, progress=progress, cache=cubins)
    assert outcome.interrupted
    assert len(progress.times) == 1
    is_stored(outcome, store, target)
    again = tune(gelu, target=target, store=store, device=None, cache=cubins)
    assert not again.interrupted
    assert not again.cached


@pytest.mark.parametrize("count", [0, 1, VERIFIED, COMPILED - 2])
def test_a_killed_run_without_a_gpu_goes_on_where_it_was(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, trusting: None, count: int
) -> None:
    """One row a config, and the winner of a run that nobody killed."""

    def kill(number: int) -> None:
        if number == count + 1:
            raise Killed

    with pytest.raises(Killed):
        tune(gelu, target=target, store=store, device=None, progress=Watcher(kill), cache=cubins)
    watcher = Watcher()
    outcome = tune(gelu, target=target, store=store, device=None, progress=watcher, cache=cubins)
    assert len(watcher.trials) == COMPILED - count - 1
    trials = store.trials(problem_key(gelu), gpu_facts(target))
    assert Counter(Counter(t.config.text for t in trials).values()) == {1: COMPILED}
    assert sum(t.verified for t in trials) == VERIFIED
    is_stored(outcome, store, target)
    assert "provisional" not in outcome.comparison


def test_a_cache_that_is_refused_ends_the_run_and_is_no_trial(
    gelu: Problem, target: Target, store: Store, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "good")
    folder = tmp_path / "cubins"
    folder.mkdir()
    os.chmod(folder, 0o777)
    with pytest.raises(CacheError, match="chmod 700"):
        tune(gelu, target=target, store=store, device=None, cache=CubinCache(folder))
    with pytest.raises(CacheError, match="chmod 700"):
        measure(gelu, target, store, CubinCache(folder), log, Budget(trials=3))
    assert store.statistics().problems == 0


def test_a_compiler_that_cannot_work_ends_the_run_and_is_no_trial(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ToolchainError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(builds, "nvrtc", broken)
        with pytest.raises(ToolchainError, match="no space left"):
            tune(gelu, target=target, store=store, device=None, cache=cubins)
    monkeypatch.setattr(emulator, "compile", broken)
    with pytest.raises(ToolchainError, match="no space left"):
        tune(gelu, target=target, store=store, device=None, cache=cubins)
    assert store.statistics().problems == 0


@pytest.mark.parametrize("error", [ArgumentError, CompileError])
def test_a_config_that_the_emulator_cannot_take_is_wrong_and_the_run_goes_on(
    gelu: Problem,
    target: Target,
    store: Store,
    cubins: CubinCache,
    trusting: None,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    calls: list[object] = []

    def first_fails(source: object) -> None:
        calls.append(source)
        if len(calls) == 1:
            raise error("parameter 3 has 4 bytes in Source.params but 8 in the kernel")

    monkeypatch.setattr(emulator, "compile", first_fails)
    outcome = tune(gelu, target=target, store=store, device=None, cache=cubins)
    assert outcome.counts == {"wrong": 1, "ok": COMPILED - 1}
    [wrong] = [t for t in store.trials(problem_key(gelu), gpu_facts(target)) if t.status == "wrong"]
    assert "but 8 in the kernel" in wrong.evidence["message"]


ODD = {"got": float("nan"), "worst": [float("inf"), (1, -float("inf"))], 3: {"share": 0.5, "kind": {1}}, "none": None}


def test_evidence_that_is_no_number_is_stored_as_text(
    gelu: Problem,
    target: Target,
    store: Store,
    cubins: CubinCache,
    trusting: None,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "verify", lambda *_, **__: Verdict(True, ODD))
    outcome = tune(gelu, target=target, store=store, device=None, cache=cubins)
    told: dict[str, Any] = dict(outcome.trial.evidence)
    assert (told["got"], told["worst"], told["3"]["kind"]) == ("nan", ["inf", [1, "-inf"]], "{1}")
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert as_json(told) == told
    monkeypatch.setenv("FAKE_WORKER", "odd")
    outcome = measure(dataclasses.replace(gelu), target, store, cubins, log, Budget(trials=2))
    assert outcome.trial.evidence["max_error"] == "nan"
