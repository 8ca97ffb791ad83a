"""The bench of a range: configs at sizes of it, timed on a GPU beside each other, or by the model where there is none.

What is timed is verified at that size before, with fewer runs where the config was right at another, and stored as trials; a
search is a tuning of one problem.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.target import Target
from kgen.gpu.cache import CubinCache
from kgen.tuner.budget import Budget
from kgen.tuner.build import COMPILE_LIMIT, Built, build, cores
from kgen.tuner.division import Point
from kgen.tuner.measured import impossible, times_of
from kgen.tuner.outcome import Outcome
from kgen.tuner.protocol import Case, Job, Open
from kgen.tuner.race import Policy
from kgen.tuner.ragged import symbols
from kgen.tuner.records import gpu_facts, problem_key, toolchain
from kgen.tuner.roofline import floor_seconds
from kgen.tuner.run import trial_of
from kgen.tuner.scored import Scored
from kgen.tuner.supervisor import Supervisor, WorkerLost
from kgen.tuning_db import MEASURED, Store

if TYPE_CHECKING:
    from kgen.tuning_db import TrialRecord

#: Regrets of some percent are told apart: between the policies of a trial and of a last round. Timed under load, at which an H200
#: is up to 19% slower than in short bursts, by the product (docs/notes/ranges.md).
BESIDE_POLICY = Policy(relative=0.0075, absolute=0.05e-6, least=10, most=200, seconds=0.3, warm=0.08)
#: The share of what is left of the budget that one search may take.
_SEARCH = 1 / 8

#: Tunes one problem, beginning with some configs.
Search = Callable[[NormalProblem, Budget, Sequence[Schedule]], Outcome]


class RangeBench:
    """A `kgen.tuner.ranges.Bench` of the configs of a family. `problem` makes the problem of some sizes.

    `device` None: there is no GPU, and times are the model's. `default` is the model's choice for a problem, `supervise` makes
    a worker.
    """

    def __init__(
        self,
        problem: Callable[[Point], NormalProblem],
        *,
        target: Target,
        device: int | None,
        store: Store,
        budget: Budget,
        search: Search,
        default: Callable[[NormalProblem], Schedule],
        within: Sequence[SearchSpace] | None = None,
        cache: CubinCache | None = None,
        supervise: Callable[[Open], Supervisor] = Supervisor,
        seed: int = 0,
    ) -> None:
        self.problem, self.target, self.device, self.store, self.budget = problem, target, device, store, budget
        self._search, self._default, self.within = search, default, within
        self._choices: dict[Point, Schedule | None] = {}
        self._scored = Scored(target, within)
        self.cache, self.supervise, self.seed = cache or CubinCache(), supervise, seed
        self.begun, self.trials = time.monotonic(), 0
        self._verified: set[Schedule] = set()
        self._compiling = ThreadPoolExecutor(max(1, cores() - 1), thread_name_prefix="kgen-ahead")
        self._ahead: dict[Schedule, Future[Built]] = {}
        #: The stored trial of each config at the sizes where it was timed; of a search, where it was found.
        self.stored: dict[tuple[Schedule, Point], int] = {}

    def close(self) -> None:
        """Drops what is to be compiled yet."""
        self._compiling.shutdown(wait=False, cancel_futures=True)

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.begun

    def left(self) -> float:
        """The share of the budget that is left."""
        spent = [(self.elapsed, self.budget.seconds), (self.trials, self.budget.trials)]
        return min(1 - used / most for used, most in spent if most is not None)

    @property
    def measures(self) -> bool:
        """Whether there is a GPU."""
        return self.device is not None

    def choice(self, sizes: Point) -> Schedule | None:
        """The default of a problem; None where it has none. It is compiled into the cache meanwhile, to be timed soon."""
        if sizes not in self._choices:
            problem = self.problem(sizes)
            try:
                config = self._choices[sizes] = self._default(problem)
            except ConfigError:
                self._choices[sizes] = None
                return None
            if self.measures and config not in self._ahead:
                self._ahead[config] = self._compiling.submit(build, config, problem, self.target, self.cache)
        return self._choices[sizes]

    def modelled(self, configs: Sequence[Schedule], sizes: Point) -> list[float]:
        """The model's seconds of each config; inf where it is not valid."""
        return self._scored.seconds(configs, self.problem(sizes))

    def search(self, sizes: Point, first: Sequence[Schedule]) -> Schedule | None:
        """The best config of a tuning of these sizes with a share of what is left."""
        share = max(self.left() * _SEARCH, 0.0)
        seconds, trials = self.budget.seconds, self.budget.trials
        budget = Budget(
            seconds=None if seconds is None else max(seconds * share, 1.0),
            trials=None if trials is None else max(int(trials * share), 2),
        )
        try:
            outcome = self._search(self.problem(sizes), budget, first)
        except ConfigError:
            return None
        self.trials += outcome.trials
        if outcome.interrupted:
            raise KeyboardInterrupt
        if outcome.trial.id is not None:
            self.stored[outcome.config, sizes] = outcome.trial.id
        return outcome.config

    def beside(self, sizes: Point, configs: Iterable[Schedule]) -> Mapping[Schedule, float]:
        """Seconds of the configs that are valid at these sizes, and right, by this GPU or by the model."""
        given = [*configs]
        seconds = {config: t for config, t in zip(given, self.modelled(given, sizes)) if t < math.inf}
        if self.device is None:
            self.trials += len(seconds)
            return seconds
        return self._timed(sizes, self.problem(sizes), [*seconds], self.device) if seconds else {}

    def _timed(
        self, sizes: Point, problem: NormalProblem, configs: Sequence[Schedule], device: int
    ) -> dict[Schedule, float]:
        floor, jobs, built = floor_seconds(problem, self.target), dict[Schedule, Job](), dict[Schedule, Built]()
        with self.supervise(Open(problem, device, self.target.l2_bytes, self.seed)) as worker:
            worker.start()
            for config in configs:
                if config in self._ahead:
                    wait([self._ahead[config]], COMPILE_LIMIT)
                made = built[config] = build(config, problem, self.target, self.cache)
                if made.status != "ok" or made.binary is None:
                    self._store(problem, trial_of(made, made.status, MEASURED, {"message": made.reason}))
                    continue
                case = Case(problem, symbols(config, problem, self.target.sm_count))
                job = Job(config.key, made.source, made.binary, (case,))
                try:
                    verdict = worker.load(job, briefly=config in self._verified)
                except WorkerLost as lost:
                    self._store(problem, trial_of(made, lost.status, MEASURED, lost.evidence))
                    continue
                if verdict.ok:
                    jobs[config] = job
                    self._verified.add(config)
                else:
                    self._store(problem, trial_of(made, "wrong", MEASURED, verdict.evidence))
            try:
                timings = worker.measure(jobs.values(), BESIDE_POLICY, floor) if jobs else {}
            except WorkerLost as lost:  # which of them it was nobody knows
                for config in jobs:
                    self._store(problem, trial_of(built[config], lost.status, MEASURED, lost.evidence))
                return {}
        found: dict[Schedule, float] = {}
        for config, job in jobs.items():
            timing = timings[job.name]
            if timing.impossible:
                self._store(problem, trial_of(built[config], "wrong", MEASURED, impossible(timing, floor)))
                continue
            values = times_of(timing, BESIDE_POLICY)
            self.stored[config, sizes] = self._store(problem, trial_of(built[config], "ok", MEASURED, **values))
            found[config] = timing.seconds
        return found

    def _store(self, problem: NormalProblem, trial: TrialRecord) -> int:
        self.trials += 1
        number: int = self.store.add_trial(gpu_facts(self.target), toolchain(), problem_key(problem), trial)
        return number
