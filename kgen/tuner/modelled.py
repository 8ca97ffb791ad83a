"""Tuning without a GPU: rank by the cost model, compile the best for real, verify them on the emulator.

Nothing of it is a measurement, and nothing is stored as one. The compiler's word counts for more than the model's: configs
that spill are rejected, and small spills push a config down the ranking. The two best of what is left are run on the
emulator, on small variants of the problem (see variants.py) and beyond 32 bits (far.py).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.gpu.cache import CubinCache
from kgen.tuner.build import Builders, Built
from kgen.tuner.candidates import Candidates
from kgen.tuner.outcome import Outcome
from kgen.tuner.run import Run, fastest, time_of
from kgen.tuner.variants import Variant, few, variants
from kgen.tuning_db import TrialRecord

#: How many configs are compiled at a time, how many must be left, and how often more are taken where they are not.
COMPILED, VERIFIED, ROUNDS = 8, 2, 4


def tune_modelled(run: Run, cache: CubinCache | None) -> Outcome:
    """The best config by model, compiler and emulator. ConfigError where none passes. Ctrl-C keeps what is done."""
    try:
        return _tune(run, cache)
    except KeyboardInterrupt:
        outcome = run.interrupted(sampler="model")
        if outcome is None:
            raise
        return outcome


def _tune(run: Run, cache: CubinCache | None) -> Outcome:
    run.progress.stage("counting the configs")
    candidates = run.candidates = Candidates(run.problem, run.target, within=run.within)
    known = run.known(unverified=True)
    run.best = fastest({config: trial for config, trial in known.items() if trial.verified})
    run.progress.space(candidates.count, len(known))
    ranked = candidates.seeds(COMPILED * ROUNDS)
    verified: dict[Schedule, TrialRecord] = {}

    def place(timed: tuple[Schedule, float]) -> tuple[float, tuple[int, ...]]:
        """By modelled time; ties in the fixed order, whichever was compiled or stored first."""
        return timed[1], candidates.order(timed[0])

    for first in range(0, len(ranked), COMPILED):
        batch = ranked[first : first + COMPILED]
        before = {config: known[config] for config in batch if config in known}
        verified |= {config: trial for config, trial in before.items() if trial.status == "ok" and trial.verified}
        run.progress.stage(f"compiling the best for {run.target.arch}")
        # What was compiled but not run before is taken up again only where too little of what was run is right.
        lacking = len(verified) < VERIFIED
        open_ = [c for c in batch if c not in known or (lacking and not known[c].verified)]
        for built, seconds in sorted(_compile(run, open_, cache), key=lambda pair: place((pair[0].config, pair[1]))):
            enough = len(verified) >= VERIFIED
            if enough and built.config in known:
                continue
            run.progress.stage("storing" if enough else "verifying on the emulator")
            trial = _judge(run, built, seconds, check=not enough)
            if trial.status == "ok" and not enough:
                verified[built.config] = trial
        if len(verified) >= VERIFIED:
            break
    if not verified:
        counts = run.counts or Counter(trial.status for trial in known.values())
        told = ", ".join(f"{n} {status}" for status, n in counts.items())
        raise ConfigError(f"no config for {run.problem} on {run.target} passed the compiler and the emulator: {told}")
    # The ranking ends here whatever the budget: more of it would be more of a model.
    spent = run.search(exhausted=True, space=candidates.count, sampler="model", verified=len(verified))
    winner = min(verified, key=lambda config: place((config, time_of(verified[config]))))
    return run.finish(verified[winner], {"search": spent})


def _compile(run: Run, configs: list[Schedule], cache: CubinCache | None) -> list[tuple[Built, float]]:
    """Compiles configs; those that pass, with the modelled time as the compiler corrects it."""
    builders = Builders(run.problem, run.target, cache, spared=0)
    passed = []
    try:
        for config in configs:
            builders.submit(config)
        while builders.pending:
            built = builders.next(wait=1.0)
            if built is None:
                continue
            if built.binary is None or built.status != "ok":
                run.add(built, built.status, evidence={"message": built.reason})
                continue
            # A spilled value is stored and loaded around the main loop; a tenth for 64 bytes is a guess on the safe side.
            seconds = built.config.estimate(run.problem, run.target) * (1 + built.binary.spill_stores / 640)
            passed.append((built, seconds))
    finally:
        builders.close()
    return passed


def _judge(run: Run, built: Built, seconds: float, check: bool) -> TrialRecord:
    """Stores a compiled config, after a run on the emulator where it is among the best."""
    if not check:
        return run.add(built, "ok", modelled_seconds=seconds, verified=False, evidence={"emulated": False})
    # Torch is needed from here on only: the look-up of a finished search does without.
    from kgen.tuner.emulated import judge_all

    found = variants(built.config, run.problem, run.target)
    evidence: dict[str, Any] = {}
    cases = found or (Variant(built.config, run.problem, few(built.config, run.problem)),)
    for case, verdict in judge_all(built.config, run.problem, run.target, cases):
        if not evidence or not verdict.ok:
            key = case.key if isinstance(case, Problem) else str(case)
            evidence = {"emulated": True, "problem": key, "variants": len(found), **verdict.evidence}
        if not verdict.ok:
            return run.add(built, "wrong", evidence=evidence)
    return run.add(built, "ok", modelled_seconds=seconds, evidence=evidence)
