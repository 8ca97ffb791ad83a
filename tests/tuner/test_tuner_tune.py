"""tune() end to end: modelled on the emulator, and the measured search with a pretended GPU behind a real worker process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tuner_runs import FAKE, Watcher, measure
from tuner_samples import problem_of

import kgen
from kgen.dsl.errors import ArgumentError, CompileError, ConfigError, DeviceError
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.gpu.cache import CubinCache
from kgen.tuner import build as builds
from kgen.tuner import measured, modelled
from kgen.tuner.budget import Budget
from kgen.tuner.candidates import Candidates
from kgen.tuner.measured import decide, near
from kgen.tuner.race import Timing
from kgen.tuner.records import config_text, gpu_facts, problem_key, read_config, toolchain
from kgen.tuner.tune import tune
from kgen.tuner.verify import Verdict
from kgen.tuning_db import MEASURED, MODELLED, Store, TrialRecord

# Without a GPU.


def test_without_a_gpu_the_best_is_modelled_and_emulated(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache
) -> None:
    watcher = Watcher()
    outcome = tune(gelu, target=target, store=store, device=None, progress=watcher, cache=cubins)
    assert not outcome.measured
    assert not outcome.cached
    assert outcome.trial.seconds is None
    assert outcome.trial.modelled_seconds is not None
    assert outcome.trial.evidence["emulated"] is True
    assert not outcome.config.rejections(gelu, target)
    assert outcome.counts == {"ok": 8}
    stored = store.trials(problem_key(gelu), gpu_facts(target))
    assert {trial.origin for trial in stored} == {MODELLED}
    assert sum(trial.verified for trial in stored) == modelled.VERIFIED
    best = store.best(problem_key(gelu), gpu_facts(target))
    assert best is not None
    assert best.trial.config == config_text(outcome.config)
    assert watcher.trials == [trial for trial in watcher.trials if trial.status == "ok"]
    assert "verifying on the emulator" in watcher.events


def test_the_second_time_everything_is_known(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune(gelu, target=target, store=store, device=None, cache=cubins)
    count = len(store.trials(problem_key(gelu), gpu_facts(target)))

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing may be compiled or enumerated")

    monkeypatch.setattr(builds, "nvrtc", forbidden)
    monkeypatch.setattr(modelled, "Candidates", forbidden)
    begun = time.perf_counter()
    second = tune(gelu, target=target, store=store, device=None, cache=cubins)
    assert time.perf_counter() - begun < 0.5
    assert second.cached
    assert second.config == first.config
    assert second.trials == 0
    assert len(store.trials(problem_key(gelu), gpu_facts(target))) == count


def test_a_look_up_loads_neither_torch_nor_optuna(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache
) -> None:
    tune(gelu, target=target, store=store, device=None, cache=cubins)
    code = (
        "import sys, time\n"
        "from tuner_samples import problem_of\n"
        "from kgen.gpu.target import resolve\n"
        "from kgen.tuner.tune import tune\n"
        "from kgen.tuning_db import open_store\n"
        f"with open_store({store.where!r}) as store:\n"
        "    begun = time.perf_counter()\n"
        "    outcome = tune(problem_of('gelu', {'...': (2**20,)}), target=resolve('H200'), store=store, device=None)\n"
        "    print(outcome.cached, time.perf_counter() - begun < 1, 'torch' in sys.modules, 'optuna' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FAKE.parent), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == ["True", "True", "False", "False"], done.stderr


def test_configs_that_the_emulator_rejects_are_not_chosen(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kgen.tuner import verify

    calls: list[object] = []

    def verdict(*arguments: object, **options: object) -> Verdict:
        calls.append(arguments)
        return Verdict(len(calls) > 2, {"check": "exact"} if len(calls) <= 2 else {})

    monkeypatch.setattr(verify, "verify", verdict)
    outcome = tune(gelu, target=target, store=store, device=None, cache=cubins)
    trials = store.trials(problem_key(gelu), gpu_facts(target))
    assert [t.status for t in trials][:4] == ["wrong", "wrong", "ok", "ok"]
    assert outcome.trial.config == trials[2].config
    assert len(calls) > 4  # a config that is right is run on several variants


def test_where_nothing_passes_the_error_counts_what_happened(
    gelu: Problem, target: Target, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise CompileError("no", "the log")

    monkeypatch.setattr(builds, "nvrtc", fails)
    with pytest.raises(ConfigError, match=r"passed the compiler and the emulator: \d+ compile_error"):
        tune(gelu, target=target, store=store, device=None, cache=CubinCache(tmp_path / "c"))
    trials = store.trials(problem_key(gelu), gpu_facts(target))
    assert all("the log" in trial.evidence["message"] for trial in trials)
    assert store.best(problem_key(gelu), gpu_facts(target)) is None


def test_bad_arguments_are_refused_before_anything_is_stored(target: Target, store: Store) -> None:
    with pytest.raises(ArgumentError, match="nothing to tune"):
        tune(problem_of("gelu", {"...": (0,)}), target=target, store=store, device=None)
    with pytest.raises(ArgumentError, match="unknown sampler 'best'"):
        tune(problem_of("gelu", {"...": (8,)}), target=target, store=store, device=None, sampler="best")
    assert store.statistics().problems == 0


# With a pretended GPU.


def test_a_search_survives_everything_and_finds_the_best(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path
) -> None:
    """Every way to fail is a trial: the run goes on, and the winner is the config that the worker likes best."""
    fields = {"pack": 8, "load": "default", "store": "default"}
    some = [
        c
        for c in Candidates(gelu, target).ranking
        if all(c.values[k] == v for k, v in fields.items()) and c.items in (2, 4) and c.threads != 256
    ]
    watcher = Watcher()
    outcome = measure(
        gelu,
        target,
        store,
        cubins,
        log,
        Budget(trials=500),
        progress=watcher,
        some=some,
        limits=(60, 1.5, 20),
        whole=True,
    )
    assert outcome.measured
    assert outcome.comparison["search"]["exhausted"] is True
    config = outcome.config.values
    assert (config["threads"], config["items"], config["blocks_per_sm"]) == (512, 4, 2)
    trials = {t.config.text: t for t in store.trials(problem_key(gelu), gpu_facts(target))}
    assert set(trials) == {repr(c) for c in some}
    seen = set()
    for c in some:
        trial, values = trials[repr(c)], (c.values["blocks_per_sm"], c.values["threads"])
        if values == (8, 1024):
            assert (trial.status, trial.evidence["exit_code"]) == ("crashed", 3)
        elif values == (8, 128):
            assert (trial.status, trial.evidence["seconds"]) == ("timeout", 1.5)
        elif values == (4, 1024):
            assert (trial.status, trial.evidence["code"]) == ("crashed", 700)
        elif values == (4, 128):
            assert (trial.status, trial.evidence["code"]) == ("crashed", 701)
        elif c.values["blocks_per_sm"] == 1:
            assert (trial.status, trial.evidence["check"]) == ("wrong", "exact")
        elif c.values["blocks_per_sm"] == 8:
            assert (trial.status, trial.evidence["check"]) == ("rejected", "slow")
        else:
            assert trial.status == "ok"
            assert trial.seconds is not None
            assert trial.registers
        seen.add(trial.status)
    assert seen == {"ok", "crashed", "timeout", "wrong", "rejected"}
    assert outcome.comparison["beats_opponent"] is True
    assert outcome.comparison["speedup_over_opponent"] == pytest.approx(2.0)
    assert len(outcome.comparison["final"]) >= 2
    best = store.best(problem_key(gelu), gpu_facts(target), MEASURED)
    assert best is not None
    assert best.trial.id == outcome.trial.id
    # 700 loses the context and 701 does not: a new process after crashes, hangs and the former alone.
    processes = {line.split()[0] for line in log.read_text().splitlines()}
    lost = sum(trials[repr(c)].status == "timeout" or trials[repr(c)].evidence.get("exit_code") == 3 for c in some)
    lost += sum(trials[repr(c)].evidence.get("code") == 700 for c in some)
    assert len(processes) in (lost, lost + 1)
    assert re.search("cases=[2-9]", log.read_text())  # variants of the problem beside it


def test_a_second_run_is_cached_and_a_larger_budget_goes_on(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "good")
    first = measure(gelu, target, store, cubins, log, Budget(trials=6))
    assert first.trials == 6
    again = measure(gelu, target, store, cubins, log, Budget(trials=6))
    assert again.cached
    assert again.config == first.config
    assert again.trial.id == first.trial.id
    before = {t.config.text for t in store.trials(problem_key(gelu), gpu_facts(target))}
    watcher = Watcher()
    more = measure(gelu, target, store, cubins, log, Budget(trials=10), progress=watcher)
    assert not more.cached
    assert more.trials == 4
    assert not before & {t.config.text for t in watcher.trials}
    assert more.comparison["search"]["trials"] == 10
    assert more.trial.seconds <= first.trial.seconds


def test_a_run_knows_of_other_spaces_what_it_searches_itself(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of a space that the user named leaves trials of values that no search of the whole considers."""
    monkeypatch.setenv("FAKE_WORKER", "good")
    searched = Candidates(gelu, target)
    beyond = kgen.Elementwise.where(threads=(96, 128), pack=searched.default.pack)
    named = measure(gelu, target, store, cubins, log, Budget(trials=12), within=[beyond])
    known = {read_config(t.config) for t in store.trials(problem_key(gelu), gpu_facts(target))}
    assert {config.threads for config in known} == {96, 128}
    assert named.config in beyond
    watcher = Watcher()
    whole = measure(gelu, target, store, cubins, log, Budget(trials=6), progress=watcher)
    tried = {read_config(t.config) for t in watcher.trials}
    assert whole.config.threads != 96
    assert all(config in searched for config in tried)
    assert not tried & known


def test_a_killed_run_has_left_its_trials_and_its_best(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGKILL: whatever was told of is on disk, with a best, and the next run goes on from there."""
    monkeypatch.setenv("FAKE_WORKER", "good")

    class Killed(BaseException):
        pass

    def kill(count: int) -> None:
        if count == 5:
            raise Killed

    with pytest.raises(Killed):
        measure(gelu, target, store, cubins, log, Budget(trials=20), progress=Watcher(kill))
    trials = store.trials(problem_key(gelu), gpu_facts(target))
    assert len(trials) == 5
    best = store.best(problem_key(gelu), gpu_facts(target), MEASURED)
    assert best is not None
    assert best.comparison["provisional"] is True
    assert best.trial.seconds == min(t.seconds for t in trials if t.seconds)
    watcher = Watcher()
    outcome = measure(gelu, target, store, cubins, log, Budget(trials=20), progress=watcher)
    assert not {t.config.text for t in trials} & {t.config.text for t in watcher.trials}
    assert "provisional" not in outcome.comparison


def test_ctrl_c_keeps_what_is_done(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "good")

    def interrupt(count: int) -> None:
        if count == 4:
            raise KeyboardInterrupt

    outcome = measure(gelu, target, store, cubins, log, Budget(trials=50), progress=Watcher(interrupt))
    assert outcome.interrupted
    assert len(store.trials(problem_key(gelu), gpu_facts(target))) == 4
    assert outcome.trial.seconds == min(
        t.seconds for t in store.trials(problem_key(gelu), gpu_facts(target)) if t.seconds
    )
    assert store.best(problem_key(gelu), gpu_facts(target)) is not None
    assert not measure(gelu, target, store, cubins, log, Budget(trials=8)).cached


def test_ctrl_c_before_the_first_result_is_ctrl_c(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path
) -> None:
    class Early(Watcher):
        def space(self, count: int, known: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(gelu, target, store, cubins, log, Budget(trials=5), progress=Early())
    assert store.best(problem_key(gelu), gpu_facts(target)) is None


def test_a_budget_in_seconds_ends_the_search(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "good")
    outcome = measure(gelu, target, store, cubins, log, Budget(seconds=4))
    assert outcome.elapsed < 10
    assert outcome.trials >= 2
    assert outcome.comparison["search"]["seconds"] >= 3


def test_times_below_the_roofline_are_wrong(
    target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^30 elements take longer than the worker pretends."""
    monkeypatch.setenv("FAKE_WORKER", "good")
    problem = problem_of("gelu", {"...": (2**30,)})
    with pytest.raises(DeviceError, match=r"no config .* ran right .*3 wrong; the last wrong one: check=impossible"):
        measure(problem, target, store, cubins, log, Budget(trials=3))
    trials = store.trials(problem_key(problem), gpu_facts(target))
    assert all(t.evidence["check"] == "impossible" for t in trials)
    assert store.best(problem_key(problem), gpu_facts(target)) is None


def test_spills_are_rejected_before_they_run(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    monkeypatch.setenv("FAKE_WORKER", "good")
    real, worse = builds.nvrtc, Candidates(gelu, target).default

    def spilling(source: Any, arch: Any, **options: Any) -> Any:
        binary = real(source, arch, **options)
        return dataclasses.replace(binary, spill_stores=4096) if repr(worse) in source.header else binary

    monkeypatch.setattr(builds, "nvrtc", spilling)
    measure(gelu, target, store, cubins, log, Budget(trials=3))
    trial = next(t for t in store.trials(problem_key(gelu), gpu_facts(target)) if t.config.text == repr(worse))
    assert trial.status == "rejected"
    assert "4096 bytes" in trial.evidence["message"]
    assert worse.key not in log.read_text()


def test_a_compiler_that_hangs_costs_one_trial(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "good")
    monkeypatch.setattr(builds, "COMPILE_LIMIT", 1.0)
    real, stuck = builds.nvrtc, Candidates(gelu, target).default

    def hanging(source: Any, arch: Any, **options: Any) -> Any:
        if repr(stuck) in source.header:
            time.sleep(30)
        return real(source, arch, **options)

    monkeypatch.setattr(builds, "nvrtc", hanging)
    outcome = measure(gelu, target, store, cubins, log, Budget(trials=4))
    assert outcome.counts == {"ok": 3, "timeout": 1}


def test_the_default_is_tried_however_short_the_time_and_long_its_build(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "good")
    monkeypatch.setattr(builds, "cores", lambda: 4)
    real, default = builds.nvrtc, Candidates(gelu, target).default

    def slow(source: Any, arch: Any, **options: Any) -> Any:
        if repr(default) in source.header:
            time.sleep(2)
        return real(source, arch, **options)

    monkeypatch.setattr(builds, "nvrtc", slow)
    measure(gelu, target, store, cubins, log, Budget(seconds=0.1))
    assert repr(default) in {t.config.text for t in store.trials(problem_key(gelu), gpu_facts(target))}


def test_stored_trials_of_another_kernel_are_not_used(
    gelu: Problem, target: Target, store: Store, cubins: CubinCache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same config with another source digest: a template has changed since."""
    monkeypatch.setenv("FAKE_WORKER", "good")
    config = Candidates(gelu, target).default
    old = TrialRecord(config_text(config), "ok", MEASURED, "ab" * 16, 1e-9, 1e-9, 1e-9, 9)
    number = store.add_trial(gpu_facts(target), toolchain(), problem_key(gelu), old)
    store.set_best(number, {"search": {"exhausted": True}})
    outcome = measure(gelu, target, store, cubins, log, Budget(trials=2))
    assert not outcome.cached
    assert outcome.trial.source_digest == outcome.config.source(gelu).digest
    assert outcome.trial.seconds > 1e-6


def test_ties_go_to_the_fixed_order(gelu: Problem, target: Target) -> None:
    candidates = Candidates(gelu, target)
    a, b, c = sorted(candidates.ranking[:3], key=candidates.order)

    def timing(seconds: float) -> Timing:
        return Timing(seconds, seconds, seconds, 30)

    assert decide({c: timing(1.0), b: timing(1.003), a: timing(1.004)}, {}, candidates.order) == a
    assert decide({c: timing(1.0), b: timing(1.003), a: timing(1.006)}, {}, candidates.order) == b
    assert decide({c: timing(1.0), b: timing(1.006), a: timing(1.006)}, {}, candidates.order) == c
    # What takes as long alone and less with early starts wins; what was not near alone has no such time.
    timed = {c: timing(1.0), b: timing(1.015), a: timing(1.1)}
    assert near(timed) == [c, b]
    assert decide(timed, {c: 1.1, b: 0.95}, candidates.order) == b
    assert decide(timed, {c: 0.97, b: 0.95}, candidates.order) == b  # a tie
    assert decide(timed, {c: 0.9, b: 0.95}, candidates.order) == c
    assert measured.TIE == 0.005
