"""Tuning without a GPU: rank by the cost model, compile the best for real, verify them on the emulator.

Nothing of it is a measurement, and nothing is stored as one. The compiler's word counts for more than the model's: configs
that spill are rejected, and small spills push a config down the ranking. The two best of what is left are run on the
emulator, on a small problem whose edges cut their tiles.
"""

from __future__ import annotations

from kgen import emulator
from kgen.dsl.errors import ConfigError
from kgen.dsl.schedule import Schedule
from kgen.gpu.cache import CubinCache
from kgen.tuner.build import Builders, Built
from kgen.tuner.candidates import Candidates
from kgen.tuner.outcome import Outcome
from kgen.tuner.ragged import ragged, symbols
from kgen.tuner.run import Run, time_of
from kgen.tuning_db import TrialRecord

#: How many configs are compiled at a time, how many must be left, and how often more are taken where they are not.
COMPILED, VERIFIED, ROUNDS = 8, 2, 4
#: Multiprocessors that the emulated GPU has: few, so that loops over tiles do loop.
_SM_COUNT = 2


def tune_modelled(run: Run, cache: CubinCache | None) -> Outcome:
    """The best config by model, compiler and emulator. ConfigError where none passes. Ctrl-C keeps what is done."""
    run.progress.stage("counting the configs")
    candidates = Candidates(run.problem, run.target)
    run.progress.space(candidates.count, 0)
    ranked = candidates.seeds(COMPILED * ROUNDS)
    verified: list[TrialRecord] = []
    interrupted = False
    try:
        for first in range(0, len(ranked), COMPILED):
            run.progress.stage(f"compiling the best for {run.target.arch}")
            builds = _compile(run, ranked[first : first + COMPILED], cache)
            for built, seconds in sorted(builds, key=lambda pair: pair[1]):
                enough = len(verified) >= VERIFIED
                run.progress.stage("storing" if enough else "verifying on the emulator")
                trial = _judge(run, built, seconds, check=not enough)
                if trial.status == "ok" and not enough:
                    verified.append(trial)
            if len(verified) >= VERIFIED:
                break
    except KeyboardInterrupt:
        if not verified:
            raise
        interrupted = True
    if not verified:
        told = ", ".join(f"{n} {status}" for status, n in run.counts.items())
        raise ConfigError(f"no config for {run.problem} on {run.target} passed the compiler and the emulator: {told}")
    # The ranking ends here whatever the budget: more of it would be more of a model.
    spent = run.search(exhausted=not interrupted, space=candidates.count, sampler="model", verified=len(verified))
    return run.finish(min(verified, key=time_of), {"search": spent}, interrupted)


def _compile(run: Run, configs: list[Schedule], cache: CubinCache | None) -> list[tuple[Built, float]]:
    """Compiles configs; those that pass, with the modelled time as the compiler corrects it."""
    builders = Builders(run.problem, run.target, cache)
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
    from kgen.tuner.execute import Runner
    from kgen.tuner.verify import verify

    problem = ragged(built.config, run.problem, run.target) or run.problem
    source = built.config.source(problem)
    runner = Runner(emulator.compile(source), source, symbols(built.config, problem, _SM_COUNT))
    verdict = verify(runner, problem)
    evidence = {"emulated": True, "problem": problem.key, **verdict.evidence}
    if not verdict.ok:
        return run.add(built, "wrong", evidence=evidence)
    return run.add(built, "ok", modelled_seconds=seconds, evidence=evidence)
