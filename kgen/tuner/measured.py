"""Tuning on a GPU: compile ahead, verify, time against the best so far, and in the end measure the best few together.

A trial is timed in a race with the best config so far, so that a slow one costs a handful of launches. Such times were taken
minutes apart; the winner is decided by a last round in which the best few, the default and torch's own kernel take turns.
What is timed is a launch that starts when the one before it has ended. Where several take as long so, within two percent, it
also counts how long they take one after the other, each starting early. Configs within half a percent of the fastest count as
equal, and the first of them in the fixed order wins, so that every run and every rank comes to the same. The search ends when
little is left to find, or with the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from kgen.dsl.errors import DeviceError
from kgen.dsl.schedule import Schedule
from kgen.gpu.cache import CubinCache
from kgen.tuner.build import Builders, Built, build
from kgen.tuner.candidates import Candidates
from kgen.tuner.outcome import Outcome
from kgen.tuner.protocol import OPPONENT, Case, Job, Open
from kgen.tuner.race import Policy, Timing
from kgen.tuner.ragged import symbols
from kgen.tuner.records import evidence_text
from kgen.tuner.roofline import floor_seconds
from kgen.tuner.run import Run, fastest, time_of
from kgen.tuner.search import Search
from kgen.tuner.supervisor import Supervisor, WorkerLost
from kgen.tuning_db import TrialRecord

TRIAL_POLICY = Policy()
FINAL_POLICY = Policy(relative=0.003, absolute=0.05e-6, least=30, most=500, seconds=1.0)
#: How many of the best take part in the last round.
FINALISTS = 4
#: Configs this close to the fastest count as equal to it; those this close are also timed with early starts.
TIE, NEAR = 0.005, 0.02
#: A config so many times slower than the best is not verified to the end: it would take the time of many others.
SLOW = 20
#: Seconds that a first run may take beside that: loading a kernel, on a machine whose cores compile others.
_FIRST_RUN = 0.5
#: Trials a second at most, to guess whether a budget reaches all of the space.
_TRIALS_A_SECOND = 4
#: How many configs are in the making beside the one that is timed, once each is chosen by the results of others.
AHEAD = 3
#: The part of the time that the last round is left.
_FINAL_SHARE = 0.1


class Measured:
    """One run of the search on a GPU."""

    def __init__(
        self,
        run: Run,
        device: int,
        sampler: str,
        seed: int,
        cache: CubinCache | None,
        supervise: Callable[[Open], Supervisor] = Supervisor,
        candidates: Candidates | None = None,
        first: Iterable[Schedule] = (),
        whole: bool = False,
    ) -> None:
        """`whole`: the search goes on to the end of the budget or the space, however little is left to find."""
        self.run, self.cache, self.sampler, self.seed, self.first, self.whole = run, cache, sampler, seed, first, whole
        self.given = candidates
        self.problem, self.target = run.problem, run.target
        self.worker = supervise(Open(run.problem, device, run.target.l2_bytes, seed))
        self.floor = floor_seconds(run.problem, run.target)
        self.jobs: dict[Schedule, Job] = {}  # those that proved right, the best few
        self.trials: dict[Schedule, TrialRecord] = {}  # ok ones, of this run and before
        self.paced: dict[Schedule, float] = {}  # times as the search learns them, see `_pace`
        self.incumbent: Schedule | None = None
        self.search: Search | None = None

    def tune(self) -> Outcome:
        """Searches until the budget is spent; Ctrl-C ends the search and keeps what is done."""
        run = self.run
        with self.worker:
            try:
                self.worker.start()
                run.progress.stage("counting the configs")
                self.candidates = self.given or Candidates(self.problem, self.target, within=run.within)
                run.candidates = self.candidates
                known = run.known()
                self.trials = {config: trial for config, trial in known.items() if trial.status == "ok"}
                run.best = fastest(known)
                run.progress.space(self.candidates.count, len(known))
                self._search({config: trial.seconds for config, trial in known.items()})
                return self._final()
            except KeyboardInterrupt:
                self.worker.kill()
                outcome = run.interrupted(**self._told())
                if outcome is None:
                    raise
                return outcome

    def _search(self, known: dict[Schedule, float | None]) -> None:
        run, budget = self.run, self.run.budget
        seconds = None if budget.seconds is None else budget.seconds - run.spent.get("seconds", 0.0)
        trials = None if budget.trials is None else budget.trials - run.spent.get("trials", 0)
        reach = trials if trials is not None else int((seconds or 0.0) * _TRIALS_A_SECOND)
        search = self.search = Search(
            self.candidates,
            sampler=self.sampler,
            seed=self.seed,
            limit=len(known) + reach,
            known=known,
            first=self.first,
        )
        run.progress.stage("searching")
        builders = Builders(self.problem, self.target, self.cache, with_variants=True)
        asked = 0
        # The default and one more are tried however short the time: there must be something to choose from.
        owed: set[Schedule] = set()
        try:
            while True:
                late = seconds is not None and run.elapsed > seconds * (1 - _FINAL_SHARE)
                over = (late or (search.settled and not self.whole)) and asked >= 2 and not owed
                while not over and builders.free and (trials is None or asked < trials):
                    if builders.pending > AHEAD and not (search.seeding or search.exhaustive):
                        break
                    config = search.ask()
                    if config is None:
                        break
                    asked += 1
                    if asked <= 2:
                        owed.add(config)
                    builders.submit(config)
                if over or not builders.pending:
                    builders.close(wait=5.0)  # no compiler beside the last round
                    return
                built = builders.next(wait=0.5)
                if built is not None:
                    trial = self._try(built)
                    owed.discard(built.config)
                    search.tell(built.config, self.paced.get(built.config, trial.seconds))
        finally:
            builders.close()

    def _try(self, built: Built) -> TrialRecord:
        """Verifies and times a compiled config, and stores what became of it."""
        run, config = self.run, built.config
        if built.status != "ok" or built.binary is None:
            return run.add(built, built.status, evidence={"message": built.reason})
        job = self._job(built)
        try:
            rival = self.jobs[self.incumbent] if self.incumbent else None
            patience = None if self.incumbent is None else _FIRST_RUN + SLOW * time_of(self.trials[self.incumbent])
            verdict = self.worker.load(job, patience)
            if not verdict.ok:
                status = "rejected" if verdict.evidence.get("check") == "slow" else "wrong"
                return run.add(built, status, evidence=dict(verdict.evidence))
            timings = self.worker.measure([*([rival] if rival else []), job], TRIAL_POLICY, self.floor)
        except WorkerLost as lost:
            return run.add(built, lost.status, evidence=lost.evidence)
        timing = timings[job.name]
        if timing.impossible:
            self.worker.unload(job.name)
            return run.add(built, "wrong", evidence=impossible(timing, self.floor))
        trial = run.add(built, "ok", evidence=dict(verdict.evidence), **times_of(timing, TRIAL_POLICY))
        self.trials[config], self.jobs[config] = trial, job
        self.paced[config] = self._pace(timing, timings[rival.name] if rival else None)
        if rival is None or timing.seconds < timings[rival.name].seconds:
            self.incumbent = config
        self._forget()
        return trial

    def _pace(self, timing: Timing, rival: Timing | None) -> float:
        """A time in seconds as if the best so far had taken as long beside it as when it was tried itself.

        A card at its power limit slows down while it heats: trials a minute apart differ by some percent.
        """
        if rival is None or self.incumbent not in self.paced:
            return timing.seconds
        return timing.seconds * self.paced[self.incumbent] / rival.seconds

    def _job(self, built: Built) -> Job:
        assert built.binary is not None
        cases = [Case(self.problem, symbols(built.config, self.problem, self.target.sm_count))]
        cases += [Case(variant.problem, variant.symbols) for variant in built.variants]
        return Job(built.config.key, built.source, built.binary, tuple(cases))

    def _forget(self) -> None:
        """Drops the kernels that will not be in the last round."""
        wanted = {*self._best(FINALISTS), self.candidates.default, self.incumbent}
        for config in [c for c in self.jobs if c not in wanted]:
            self.worker.unload(self.jobs.pop(config).name)

    def _best(self, count: int) -> list[Schedule]:
        return sorted(self.trials, key=lambda c: (time_of(self.trials[c]), self.candidates.order(c)))[:count]

    def _told(self) -> dict[str, Any]:
        if self.search is None:  # it did not begin
            return {}
        exhausted, space = self.search.exhausted, self.candidates.count
        settled, chance = self.search.settled, self.search.chance
        told = {"settled": settled} | ({} if chance is None else {"chance": round(chance, 4)})
        return {"exhausted": exhausted, **told, "space": space, "sampler": self.sampler, "seed": self.seed}

    def _final(self) -> Outcome:
        """Measures the best few, the default and the opponent together, and stores the winner with the comparison."""
        run, default = self.run, self.candidates.default
        if not self.trials:
            told = ", ".join(f"{n} {status}" for status, n in run.counts.items()) or "nothing was tried"
            last = f"; the last wrong one: {evidence_text(run.wrong)}" if run.wrong else ""
            raise DeviceError(
                f"no config for {self.problem} ran right on {self.target} ({told}{last}); `kgen tune` with more budget"
            )
        run.progress.stage("measuring the best together")
        contenders = dict.fromkeys([*self._best(FINALISTS), *([default] if default in self.trials else [])])
        jobs = {config: job for config in contenders if (job := self._again(config)) is not None}
        extra = (OPPONENT,) if self.worker.has_opponent else ()
        try:
            timings = self.worker.measure(jobs.values(), FINAL_POLICY, self.floor, race=False, extra=extra)
        except WorkerLost as lost:
            best = self.trials[self._best(1)[0]]
            return run.finish(
                best, {"search": run.search(**self._told()), "provisional": True, "final_failed": lost.evidence}
            )
        timed = {config: timings[job.name] for config, job in jobs.items() if not timings[job.name].impossible}
        if not timed:
            raise DeviceError(f"every time of the last round is below {self.floor:g} s, the least this GPU can need")
        winner = decide(timed, self._early({config: jobs[config] for config in near(timed)}), self.candidates.order)
        comparison = {"search": run.search(completed=True, **self._told())} | _comparison(
            winner, timed, default, timings.get(OPPONENT)
        )
        trial = run.refine(self.trials[winner], **times_of(timed[winner], FINAL_POLICY))
        return run.finish(trial, comparison)

    def _early(self, jobs: Mapping[Schedule, Job]) -> dict[Schedule, float]:
        """Seconds of launches that start early; none where there is one config alone, or the worker fails."""
        if len(jobs) < 2:
            return {}
        try:
            timings = self.worker.measure(jobs.values(), FINAL_POLICY, 0.0, race=False, early=True)
        except WorkerLost:
            return {}
        return {config: timings[job.name].seconds for config, job in jobs.items()}

    def _again(self, config: Schedule) -> Job | None:
        """The job of a finalist; one known from before is compiled and verified anew."""
        if config in self.jobs:
            return self.jobs[config]
        built = build(config, self.problem, self.target, self.cache, with_variants=True)
        if built.status != "ok":
            return None
        job = self._job(built)
        try:
            return job if self.worker.load(job).ok else None
        except WorkerLost:
            return None


def near(timed: Mapping[Schedule, Timing]) -> list[Schedule]:
    """The configs within NEAR of the fastest."""
    bar = min(timing.seconds for timing in timed.values()) * (1 + NEAR)
    return [config for config, timing in timed.items() if timing.seconds <= bar]


def decide(
    timed: Mapping[Schedule, Timing], early: Mapping[Schedule, float], order: Callable[[Schedule], tuple[int, ...]]
) -> Schedule:
    """The winner: of all within TIE of the fastest, the first in the fixed order. Of those timed with `early` starts, too, the
    fastest are those with the least geometric mean of both times."""
    alone = {config: timing.seconds for config, timing in timed.items()}
    seconds = {config: math.sqrt(alone[config] * t) for config, t in early.items()} or alone
    fastest = min(seconds.values())
    return min((config for config, s in seconds.items() if s <= fastest * (1 + TIE)), key=order)


def times_of(timing: Timing, policy: Policy) -> dict[str, Any]:
    """A timing as a trial's record has it."""
    clocks = dict(timing.clocks) | {"flags": list(timing.flags), "discarded": timing.discarded}
    return {
        "seconds": timing.seconds,
        "lower": timing.lower,
        "upper": timing.upper,
        "samples": timing.samples,
        "policy": str(policy),
        "clocks": clocks,
    }


def impossible(timing: Timing, floor: float) -> dict[str, Any]:
    """The evidence against a time below what the GPU can need."""
    return {"check": "impossible", "seconds": timing.seconds, "floor_seconds": floor}


def _comparison(
    winner: Schedule, timed: dict[Schedule, Timing], default: Schedule, opponent: Timing | None
) -> dict[str, Any]:
    """What the last round showed, as JSON. To beat is to be faster by more than both intervals."""

    def told(timing: Timing) -> dict[str, Any]:
        return {**asdict(timing), "flags": list(timing.flags), "clocks": dict(timing.clocks)}

    def beats(other: Timing) -> bool:
        return timed[winner].upper < other.lower

    found: dict[str, Any] = {"final": {repr(config): told(timing) for config, timing in timed.items()}}
    if default in timed:
        found |= {
            "default": repr(default),
            "beats_default": winner != default and beats(timed[default]),
            "speedup_over_default": timed[default].seconds / timed[winner].seconds,
        }
    if opponent is not None:
        found |= {
            "opponent": {"name": "torch.matmul", **told(opponent)},
            "beats_opponent": beats(opponent),
            "speedup_over_opponent": opponent.seconds / timed[winner].seconds,
        }
    return found
