"""Fit: the constants of a cost model from the times of configs, and how good the model's first choices are with them.

The logarithm of a modelled time is to be that of the measured one. Residuals count as much as their config matters: those near
the best of their problem wholly, those far behind little, and wild ones no more than in proportion (Huber, Robust Estimation of
a Location Parameter, 1964). Levenberg-Marquardt over the logarithms of the constants (Nocedal and Wright, Numerical Optimization,
2006, chapter 10); each is drawn to where it began, weakly, so that what no time tells of stays as it was. What a model is for is
the choice: from there a compass search (Kolda, Lewis and Torczon, Optimization by Direct Search, 2003) lessens the regret that is
expected where the model errs by 2%. Problems of the same weights (all sizes but M) are held out together: regret is told on those
that the fit has not seen.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from kgen.dsl.errors import ArgumentError
from kgen.dsl.machine import Constants, Fitted, Machine
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner.columns import Table, table_of

#: A config so much slower than the best of its problem counts a half; residuals beyond `_WILD` grow linearly.
_HALF, _WILD = 0.15, 0.1
#: How far constants go from where they began, in the logarithm, for a residual's worth; and at most.
_DRAWN, _MOST = 1.0, math.log(4.0)
_ROUNDS, _STEP, _EXACT = 25, 1e-4, 1e-9
#: The model's error, in the logarithm, for which regret is expected (less where the model is nearer), and the weight of that
#: error itself, by which schedules are compared; steps of the compass search, and what draws it back.
_ERROR, _OFF, _REACHES, _BACK = 0.02, 0.1, (0.2, 0.1, 0.05), 2e-3
#: The most that one config counts, whatever disturbed its time.
_LOST = 0.5


@dataclass(frozen=True)
class Measurement:
    """The times of configs of one schedule, in seconds, for a problem."""

    problem: NormalProblem
    times: Mapping[Schedule, float]


@dataclass(frozen=True)
class Regret:
    """How far the model's first choice, and the best of its first four, are from the best measured: time over time, minus one.

    Geometric mean, 90th percentile and worst over `problems`.
    """

    problems: int
    first: tuple[float, float, float]
    of_four: tuple[float, float, float]


@dataclass(frozen=True)
class Fit:
    """New constants of a model, and the regret with the old ones and the new, on problems held out and on those fitted."""

    model: str
    constants: Mapping[str, float]
    before: Regret
    after: Regret
    before_fitted: Regret
    after_fitted: Regret

    def fitted(self, evidence: str) -> Fitted:
        """As a machine's file has it."""
        return Fitted("fitted", evidence, self.constants)


@dataclass(frozen=True)
class _Rows:
    """Configs of one problem that a model takes together, and their times as they count."""

    problem: NormalProblem
    table: Table
    seconds: np.ndarray
    weights: np.ndarray

    def log_model(self, target: Target) -> np.ndarray:
        modelled = self.table.schedule.partial(self.table).estimate(self.problem, target)
        found: np.ndarray = np.log(np.broadcast_to(modelled, self.seconds.shape))
        return found


def is_held_out(problem: NormalProblem, share: float) -> bool:
    """Whether a problem is of those held out: by its sizes other than M, so that all lengths of one weight go together."""
    sizes = sorted((name, size) for name, size in problem.sizes.items() if name != "M")
    told = hashlib.sha256(f"{problem.graph.digest} {sizes}".encode()).digest()
    return int.from_bytes(told[:8], "big") < share * 2**64


def fit(
    kind: type[Constants], measured: Sequence[Measurement], start: Constants, target: Target, held_out: float
) -> Fit:
    """Fits a model's constants, from `start`, to what was measured; `held_out` is the share of problems that it does not see.

    ArgumentError where too few problems have times of at least two configs.
    """
    useful = [m for m in measured if len(m.times) >= 2]
    seen = [m for m in useful if not is_held_out(m.problem, held_out)]
    unseen = [m for m in useful if is_held_out(m.problem, held_out)]
    if not seen or (held_out and not unseen):
        raise ArgumentError(
            f"{kind.model} cannot be fitted to {len(useful)} problems with times of two configs and more: some are to be fitted "
            f"to, and {held_out:.0%} to be held out; measure more"
        )
    problems = [_rows(m) for m in seen]
    begun = {f.name: float(getattr(start, f.name)) for f in fields(start)}  # type: ignore[arg-type]
    found = _solved(kind, [row for rows in problems for row in rows], begun, target)
    found = _by_choice(kind, problems, found, target)
    old, new = (_with(kind, values, target) for values in (begun, found))
    unseen = unseen or seen
    return Fit(
        kind.model,
        found,
        regret(unseen, old),
        regret(unseen, new),
        regret(seen, old),
        regret(seen, new),
    )


def regret(measured: Sequence[Measurement], target: Target) -> Regret:
    """Of the configs that were timed, how far the model's first ones on this target are from the best."""
    first, four = [], []
    for m in measured:
        rows = _rows(m)
        modelled = np.concatenate([row.log_model(target) for row in rows])
        seconds = np.concatenate([row.seconds for row in rows])
        order = seconds[np.argsort(modelled, kind="stable")] / seconds.min()
        first.append(float(order[0]))
        four.append(float(order[:4].min()))
    return Regret(len(first), _told(first), _told(four))


def _told(ratios: list[float]) -> tuple[float, float, float]:
    ordered = sorted(ratios)
    tail = ordered[min(len(ordered) - 1, math.ceil(0.9 * len(ordered)) - 1)]
    return statistics.geometric_mean(ratios) - 1, tail - 1, ordered[-1] - 1


def _with(kind: type[Constants], values: Mapping[str, float], target: Target) -> Target:
    """The target with these constants of a model, and no others."""
    return replace(target, machine=Machine(target.name, {kind.model: Fitted("fitted", "a fit under way", values)}))


def _rows(measured: Measurement) -> list[_Rows]:
    """The configs by schedule and by fields that are to be alike."""
    groups: dict[Hashable, list[Schedule]] = defaultdict(list)
    for config in measured.times:
        groups[(type(config), *(config.values[name] for name in config.alike))].append(config)
    best, found = min(measured.times.values()), []
    for configs in groups.values():
        seconds = np.array([measured.times[config] for config in configs])
        weights = 1 / (1 + ((seconds / best - 1) / _HALF) ** 2)
        found.append(_Rows(measured.problem, table_of(configs), seconds, weights / math.sqrt(len(measured.times))))
    return found


def _expected(problems: Sequence[Sequence[_Rows]], target: Target, error: float) -> float:
    """The regret, as a logarithm, of configs chosen by modelled times with that error, and how far these times are off."""
    total = 0.0
    for rows in problems:
        modelled = np.concatenate([row.log_model(target) for row in rows])
        seconds = np.log(np.concatenate([row.seconds for row in rows]))
        chance = np.exp((modelled.min() - modelled) / error)
        lost = np.minimum(seconds - seconds.min(), _LOST) + _OFF * np.abs(modelled - seconds)
        total += float((chance * lost).sum() / chance.sum())
    return total / len(problems)


def _spread(problems: Sequence[Sequence[_Rows]], target: Target) -> float:
    """The error of the model: the weighted median of its residuals."""
    off = [(np.abs(row.log_model(target) - np.log(row.seconds)), row.weights) for rows in problems for row in rows]
    residuals, weights = (np.concatenate(parts) for parts in zip(*off))
    order = np.argsort(residuals)
    middle = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    return float(residuals[order][middle])


def _by_choice(
    kind: type[Constants], problems: Sequence[Sequence[_Rows]], begun: Mapping[str, float], target: Target
) -> dict[str, float]:
    """Constants near `begun` for which the expected regret is less."""
    names = [name for name, value in begun.items() if value > 0]
    best, moved = dict(begun), dict.fromkeys(names, 0.0)
    error = min(_ERROR, _spread(problems, _with(kind, begun, target)))
    if error < _EXACT:
        return best

    def cost(values: Mapping[str, float], steps: Mapping[str, float]) -> float:
        back = _BACK * sum(step * step for step in steps.values())
        return _expected(problems, _with(kind, values, target), error) + back

    least = cost(best, moved)
    for reach in _REACHES:
        for name in names * 2:
            for step in (reach, -reach):
                there = {**moved, name: moved[name] + step}
                tried = {**best, name: begun[name] * math.exp(there[name])}
                if (now := cost(tried, there)) < least:
                    best, moved, least = tried, there, now
                    break
    return best


def _solved(
    kind: type[Constants], rows: Sequence[_Rows], begun: Mapping[str, float], target: Target
) -> dict[str, float]:
    """Levenberg-Marquardt over the logarithms of the constants; those that are 0 stay."""
    names = [name for name, value in begun.items() if value > 0]
    measured = np.concatenate([np.log(row.seconds) for row in rows])
    weights = np.concatenate([row.weights for row in rows])

    def values(x: np.ndarray) -> dict[str, float]:
        return {**begun, **{name: begun[name] * math.exp(step) for name, step in zip(names, x)}}

    def residuals(x: np.ndarray) -> np.ndarray:
        there = _with(kind, values(x), target)
        found: np.ndarray = np.concatenate([row.log_model(there) for row in rows]) - measured
        return found

    def cost(r: np.ndarray, x: np.ndarray) -> float:
        far = np.abs(r)
        huber = np.where(far <= _WILD, r * r, _WILD * (2 * far - _WILD))
        return float((weights * huber).sum() + ((_WILD * x / _DRAWN) ** 2).sum())

    x, damping = np.zeros(len(names)), 1e-2
    r = residuals(x)
    best = cost(r, x)
    for _ in range(_ROUNDS if best > _EXACT else 0):
        slopes = np.stack([(residuals(x + _STEP * unit) - r) / _STEP for unit in np.eye(len(names))], axis=1)
        counted = weights * np.minimum(1.0, _WILD / np.maximum(np.abs(r), 1e-12))
        drawn = (_WILD / _DRAWN) ** 2
        square = slopes.T @ (counted[:, None] * slopes) + drawn * np.eye(len(names))
        down = slopes.T @ (counted * r) + drawn * x
        before = best
        while damping < 1e8:
            step = np.linalg.solve(square + damping * np.diag(np.diag(square)), -down)
            tried = np.clip(x + step, -_MOST, _MOST)
            there = residuals(tried)
            if (now := cost(there, tried)) < best:
                x, r, best, damping = tried, there, now, damping / 4
                break
            damping *= 4
        if best > before * (1 - 1e-5) or best < _EXACT:
            break
    return values(x)
