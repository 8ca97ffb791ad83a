"""Which config serves a problem: the best known for this GPU, else its bucket's, else the nearest tuned shape's, else a default.

Known is what the user's database holds, and after that what comes with kgen for the card.

Only the first call of a kind asks. Where a problem was not tuned, one warning names the command that does it, for the first few
shapes of an operator. A database that cannot be read costs one warning and no call.
"""

from __future__ import annotations

import functools
import math
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kgen import ops
from kgen.codegen.render import command_arguments
from kgen.codegen.settings import database
from kgen.dsl.errors import ArgumentError, ConfigError, DatabaseError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.program import several_launches
from kgen.dsl.restriction import UNRESTRICTED, Restriction
from kgen.dsl.schedule import Schedule, SearchSpace, default_of, source_of
from kgen.dsl.target import GENERIC, Target
from kgen.runtime import buckets
from kgen.tuner import foreseen, records
from kgen.tuner.candidates import Candidates
from kgen.tuning_db import MEASURED, BestRecord, BucketRecord, distance, is_there, nearest, shipped

if TYPE_CHECKING:
    from kgen.tuning_db import Store

#: The GPU whose limits the emulator's launches keep to: the one with the most features.
EMULATED = GENERIC["sm_90a"]
#: The best of another shape is looked at where that is no farther, or its `_worth` is more.
_NEAR, _LEAST_WORTH = 2.0, 1.005

#: What tunes operators that no name leads to, by the digests of their graphs.
COMMANDS: dict[str, str] = {}


class KgenWarning(UserWarning):
    """Something is slower than it could be, or was left out; results are right."""


@dataclass(frozen=True)
class Choice:
    """A config and how it was found.

    It is the best known here ("tuned") or the one that comes with kgen ("shipped"), that of a range of sizes ("bucket") or of
    another shape ("nearest"), a default, or "given" by the user. `record` is the stored result that it comes from.
    """

    config: Schedule
    how: Literal["given", "tuned", "shipped", "bucket", "nearest", "default"]
    record: BestRecord | BucketRecord | None = None

    @property
    def origin(self) -> str:
        """What is known of the config's speed: measured or modelled, on which GPU, when, and for which sizes if others."""
        if self.record is None:
            return "given" if self.how == "given" else "the default by the model, not measured"
        trial, day = self.record.trial, ""
        if trial.created_at is not None:
            day = f", {trial.created_at:%Y-%m-%d}"
        known = "measured on" if self.record.origin == MEASURED else "by the model, not measured, for"
        served = self.record.spans if isinstance(self.record, BucketRecord) else self.record.problem.sizes
        sizes = ", ".join(f"{dim}={n}" for dim, n in served.items())
        return f"{known} {self.record.gpu.name}{day}" + (f", for {sizes}" if self.how in ("bucket", "nearest") else "")

    @property
    def told(self) -> str:
        """How it was found, its origin, and the version of kgen that the result is of."""
        made = f", by kgen {self.record.toolchain.kgen}" if self.record else ""
        return self.how if self.how == "given" else f"{self.how}: {self.origin}{made}"


def choose(problem: Problem, target: Target, store: Store | None, restriction: Restriction = UNRESTRICTED) -> Choice:
    """The config for a problem on a GPU by what `store` knows, measured before modelled. Raises ConfigError if none is valid.

    With a `restriction`, of its configs alone: first what was found among them, then what is known of all and is one of them.

    A size that was not tuned, inside of a range that was, gets the config of its bucket (`kgen.runtime.buckets`).
    Results of another version of NVRTC or of a template count like those of another shape. The best of another shape is
    taken where the model gives it no more above the default's time than it was found to be faster than the default there, and
    the less the farther that shape is (`_worth`): a tile for 4096 rows is none for 16. Results that were imported count once
    tuning has verified them on this machine; those that come with kgen were, on such a card, and serve their own shapes alone.
    """
    problem, gpu = normalised(problem), records.gpu_facts(target)
    known = list(shipped(gpu, problem.graph.digest, problem.sizes))
    if store is None and not known and not buckets.shipped(gpu):  # nothing is known that may serve
        return default(problem, target, restriction)
    key, within = records.problem_key(problem), restriction.within(problem, target)
    exact: list[tuple[Literal["tuned", "shipped"], BestRecord | None]] = [
        ("shipped", record) for record in known if record.problem.key == key.key
    ]
    if store is not None:
        for space in _spaces(within):
            best = _verified(store.best(key, gpu, toolchain=records.toolchain(), space=space))
            exact.insert(0 if best and best.origin == MEASURED else len(exact), ("tuned", best))
            known = [*filter(_verified, store.best_of_operator(key.digest, gpu, space=space)), *known]
    for how, record in exact:
        config = record and usable(record, problem, target, within)
        if record and config and source_of(config, problem).digest == record.trial.source_digest:
            return Choice(config, how, record)
    bucket = of_bucket(problem, target, store, restriction)
    if bucket is not None:
        return bucket
    modelled = default(problem, target, restriction)
    others = [record for record in nearest(_alike(key.text, known), key.sizes) if _may_serve(record, key.sizes)]
    shortest = modelled.config.estimate(problem, target) if others else 0.0
    for record in others:
        config = usable(record, problem, target, within)
        if config and config.estimate(problem, target) <= shortest * _worth(record, key.sizes):
            return Choice(config, "nearest", record)
    return modelled


def _may_serve(record: BestRecord, sizes: Mapping[str, int]) -> bool:
    """Whether the best of another shape is worth a look, which takes half a millisecond: it is near, or was worth something."""
    return distance(record.problem.sizes, sizes) <= _NEAR or _worth(record, sizes) > _LEAST_WORTH


def _worth(record: BestRecord, sizes: Mapping[str, int]) -> float:
    """How many times as long as the default's a model may say that a config takes, for what tuning another shape has shown; of
    the same shape it may say anything.

    That is how much faster than that shape's default it was: what the model was wrong by there. Of its logarithm as large a part
    is left as the shapes are alike, none where nothing was measured.
    """
    if record.problem.sizes == sizes:
        return math.inf
    gain = max(1.0, record.comparison.get("speedup_over_default", 1.0))
    return math.pow(gain, 1 / distance(record.problem.sizes, sizes))


def of_bucket(
    problem: NormalProblem, target: Target, store: Store | None, restriction: Restriction = UNRESTRICTED
) -> Choice | None:
    """The config of the first bucket that a problem is in and that is valid for it; None where there is none."""
    within = restriction.within(problem, target)
    key, gpu = records.problem_key(problem), records.gpu_facts(target)
    for record in buckets.found(problem, key, gpu, store, _spaces(within)):
        config = usable(record, problem, target, within)
        if config:
            return Choice(config, "bucket", record)
    return None


def _spaces(within: Sequence[SearchSpace] | None) -> tuple[str, ...]:
    """The spaces whose results count: that of all configs, and that of a restriction."""
    return tuple(dict.fromkeys(("", records.space_text(within))))


def default(problem: Problem, target: Target, restriction: Restriction = UNRESTRICTED) -> Choice:
    """The best, by the cost model, of the defaults of schedules that are not for tuning alone; or of what a restriction leaves.

    Raises ConfigError where no schedule can serve the problem, or where it takes several launches (`kgen.dsl.program`).
    """
    problem = normalised(problem)
    if not family_of(problem.graph).schedules:
        raise several_launches(problem.graph)
    within = restriction.within(problem, target)
    if within is not None:
        return Choice(Candidates(problem, target, within=within).default, "default")
    found: list[tuple[Schedule, float | None]] = []
    reasons = []
    worth = {s: s.worth_searching(problem, target) for s in family_of(problem.graph).schedules}
    # What no search considers is looked at where nothing else serves.
    for schedule in sorted(worth, key=lambda s: not worth[s]):
        if found and not worth[schedule]:
            break
        if not schedule.target.runs_on(target.arch):
            reasons.append(f"{schedule.__name__} needs {schedule.target}")
        elif not schedule.applies(problem):
            reasons.append(f"{schedule.__name__} does not apply")
        elif not schedule.by_default:
            reasons.append(f"{schedule.__name__} is for tuning alone")
        else:
            try:
                if schedule.recorded:
                    found.append(foreseen.first(schedule, problem, target))
                else:
                    found.append((default_of(schedule, problem, target), None))
            except ConfigError as error:
                reasons.append(str(error))
    if not found:
        raise ConfigError(f"no config serves {problem} on {target}: {'; '.join(reasons)}")

    def seconds(told: tuple[Schedule, float | None]) -> float:
        config, known = told
        return config.estimate(problem, target) if known is None else known

    return Choice(found[0][0] if len(found) == 1 else min(found, key=seconds)[0], "default")


def _verified(record: BestRecord | None) -> BestRecord | None:
    return record if record and record.trial.verified else None


def usable(
    record: BestRecord | BucketRecord,
    problem: NormalProblem,
    target: Target,
    within: Sequence[SearchSpace] | None = None,
) -> Schedule | None:
    """The config of a result, where it is valid for this problem and in the spaces; None where it means something else now."""
    config = records.read_config(record.trial.config, within)
    try:
        if config is not None:
            check(config, problem, target)
    except ConfigError:
        return None
    return config if within is None or any(config in space for space in within) else None


def check(config: Schedule, problem: NormalProblem, target: Target) -> None:
    """Raises ConfigError, with the reasons, where a config cannot serve a (normalised) problem on a GPU."""
    family = family_of(problem.graph)
    if not isinstance(config, family.schedules) or not config.applies(problem):
        expected = ", ".join(s.__name__ for s in family.schedules if s.applies(problem))
        raise ConfigError(f"{config!r} does not serve {problem}; its schedules are {expected or 'none'}")
    if not config.target.runs_on(target.arch):
        raise ConfigError(f"{config!r} needs {config.target}; {target} is another architecture")
    config.check(problem, target)


def _alike(text: str, found: Iterable[BestRecord]) -> list[BestRecord]:
    """The results whose problems differ from the one written `text` in numbers alone: of the same dtypes and layouts."""

    form = _form(text)
    return [record for record in found if _form(record.problem.text) == form]


@functools.lru_cache(maxsize=16384)
def _form(written: str) -> str:
    return re.sub(r"\[[^\]]*\]|strides\([^)]*\)|@\d+", "", written)


def serve(
    problem: Problem, target: Target, restriction: Restriction = UNRESTRICTED, of: Problem | None = None
) -> Choice:
    """As `choose`, by the user's database, with the warnings that the caller of an operator gets.

    `of` is the problem that this one is a launch of.
    """
    store = default_store()
    try:
        choice = choose(problem, target, store, restriction)
    except DatabaseError as error:
        warn_once(str(error), f"{error}; going on with default configs")
        choice = default(problem, target, restriction)
    if choice.how in ("nearest", "default"):
        _suggest(of or problem, target, choice, restriction)
    return choice


def default_store() -> Store | None:
    """The user's database; None where there is none yet, or, with one warning, where it cannot be opened."""
    try:
        where = database()
        return _opened(where) if is_there(where) else None
    except (ArgumentError, DatabaseError) as error:
        warn_once(str(error), f"{error}; going on with default configs")
        return None


@functools.cache
def _opened(where: str) -> Store | None:
    from kgen.tuning_db import open_store

    try:
        return open_store(where, readonly=True)
    except DatabaseError as error:
        warn_once(str(error), f"{error}; going on with default configs")
        return None


def forget() -> None:
    """Makes the next question to the database a new one."""
    _opened.cache_clear()


def _suggest(problem: Problem, target: Target, choice: Choice, restriction: Restriction) -> None:
    _suggested[problem.graph.digest] += 1
    if _suggested[problem.graph.digest] > _MOST:
        return
    shipped = None if restriction else ops.shipped(problem.graph.name)
    if problem.graph.digest in COMMANDS:
        command = COMMANDS[problem.graph.digest]
    elif shipped and any(graph.digest == problem.graph.digest for graph in shipped.graphs):
        command = f"kgen tune {command_arguments(problem)}"
    else:
        words = [problem.graph.name, *(f"{dim}={size}" for dim, size in problem.bindings)]
        words += [f"leading={problem.leading}"] if problem.leading else []
        words.append(f"dtype='{','.join(dict.fromkeys(o.dtype.name for o in problem.inputs))}'")
        columns = {o.name: "col" for o in problem.operands if o.layout == "col"}
        words += [f"layouts={columns}"] if columns else []
        command = f"kgen.tune({', '.join(words)})"
        command += f" with the operator that is restricted to {restriction}" if restriction else ""
    using = "a default config"
    if choice.how == "nearest" and choice.record:
        using = f"the config tuned for {', '.join(f'{dim}={n}' for dim, n in choice.record.problem.sizes.items())}"
    last = "; of further shapes nothing is said" if _suggested[problem.graph.digest] == _MOST else ""
    warn_once(command, f"{problem} is not tuned for {target}: it runs with {using}. To tune it: {command}{last}")


#: Shapes of an operator of which a warning says that they are not tuned.
_MOST = 8
#: How many there were, by the digests of graphs.
_suggested: Counter[str] = Counter()
_warned: set[str] = set()
_warning = threading.Lock()


def warn_once(key: str, message: str) -> None:
    """A KgenWarning at the caller's line, the first time that `key` occurs in this process."""
    with _warning:
        if key in _warned:
            return
        _warned.add(key)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "kgen":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, KgenWarning, stacklevel=level)
