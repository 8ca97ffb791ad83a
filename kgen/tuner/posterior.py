"""Posterior: what the times of the configs tried say of those that are left, and the chance that one of them is faster.

The logarithm of a config's time is the model's, plus one offset for all (the median error of the faster half), plus an error
that is alike for configs that are alike: a Gaussian process with covariance s^2 rho^d over the d fields in which two configs
differ, and the scatter of times of one config. s, rho and the scatter are not chosen: each triple of a small grid counts by its
likelihood. Of a GPU at its power limit times scatter by percents, which would otherwise count as what fields make of a config.
More than `CLIP` over the best counts as that much, by the clock and by the model: how slow a bad config is says nothing of
good ones.

The chance that any config left is more than GAIN faster than the best is read from joint draws of those likeliest to be.
Gaussian process regression: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1; choosing
what is likeliest to improve: Kushner (1964).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from kgen.dsl.schedule import Schedule
from kgen.tuner.candidates import Candidates

#: What is worth finding: a config so much faster than the best one known.
GAIN = 0.01
#: Fewer trials than this say too little.
LEAST = 8
#: Configs of the top of the ranking that are looked at. Those far below would have to beat the model by far.
REACH = 2000
CLIP = 0.2
#: From a timing's own interval up to a card that heats while it is timed.
_SCATTER = (0.005, 0.01, 0.02, 0.04)
_SCALES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.3)
_LIKENESS = (0.3, 0.5, 0.7, 0.85, 0.95)
#: Triples of less weight are left out.
_WEIGHT = 0.03
#: Joint draws, and how many configs they are made of.
_DRAWS, _DRAWN = 200, 200

_below = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)), otypes=[float])


@dataclass(frozen=True)
class Prospect:
    """The config likeliest to be more than GAIN faster than the best known, and the chance that any of those left is."""

    config: Schedule
    chance: float


class Posterior:
    """Learns times; `prospect` says what to try next. Failed configs are left out, of their likes nothing is said."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._configs = candidates.ranking[:REACH]
        self._place = {config: i for i, config in enumerate(self._configs)}
        self._codes = self._encode(self._configs)
        self._model = np.log([candidates.estimate(config) for config in self._configs])
        self._times: dict[Schedule, float] = {}

    def _encode(self, configs: list[Schedule]) -> np.ndarray:
        """A row of numbers a config, equal where fields are; those of two schedules have none in common."""
        rows = [self._candidates.order(config) for config in configs]
        width = max(len(space.schedule.fields) for space in self._candidates.spaces)
        return np.array(
            [[row[0] * 1000 + value for value in (*row[1:], *[999] * (width + 1 - len(row)))] for row in rows]
        )

    def learn(self, config: Schedule, seconds: float) -> None:
        """Takes a measured time."""
        self._times[config] = seconds

    def prospect(self, taken: set[Schedule]) -> Prospect | None:
        """What the configs that are not `taken` promise; None where too little is known, or nothing is left."""
        left = np.array([i for i, config in enumerate(self._configs) if config not in taken], dtype=int)
        if len(self._times) < LEAST or not len(left):
            return None
        tried = list(self._times)
        codes = self._encode(tried)
        model = np.log([self._candidates.estimate(config) for config in tried])
        times = np.log([self._times[config] for config in tried])
        best = times.min()
        offset = np.median((times - model)[times <= np.median(times)])
        errors = np.minimum(times, best + CLIP) - np.minimum(model + offset, best + CLIP)
        expected = np.minimum(self._model[left] + offset, best + CLIP)
        target = best + math.log(1 - GAIN)

        near, apart = _differences(codes, codes), _differences(self._codes[left], codes)
        promise, chance = np.zeros(len(left)), 0.0
        for weight, scale, likeness, root, solved in _fits(near, errors):
            shared = np.linalg.solve(root, scale**2 * (likeness**apart).T)
            mean = expected + shared.T @ solved
            spread = np.sqrt(np.maximum(scale**2 - (shared**2).sum(0), 1e-10))
            single = _below((target - mean) / spread)
            promise += weight * single
            top = np.argsort(-single, kind="stable")[:_DRAWN]
            among = _differences(self._codes[left[top]], self._codes[left[top]])
            covariance = scale**2 * likeness**among - shared[:, top].T @ shared[:, top] + 1e-7 * np.eye(len(top))
            normal = np.random.default_rng(0).standard_normal((len(top), _DRAWS))
            drawn = mean[top][:, None] + np.linalg.cholesky(covariance) @ normal
            chance += weight * float((drawn.min(0) < target).mean())
        return Prospect(self._configs[left[int(np.argmax(promise))]], chance)


def _differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In how many fields each row of one differs from each of the other."""
    found = np.zeros((len(a), len(b)), dtype=np.int64)
    for column in range(a.shape[1]):  # one at a time: a whole cube of comparisons is slower than its sum
        found += a[:, None, column] != b[None, :, column]
    return found


def _fits(near: np.ndarray, errors: np.ndarray) -> list[tuple[float, float, float, np.ndarray, np.ndarray]]:
    """(weight, scale, likeness, Cholesky root L, L^-1 errors) of each triple that the errors make likely."""
    found = []
    for likeness in _LIKENESS:
        alike = likeness**near
        for scale, scatter in itertools.product(_SCALES, _SCATTER):
            root = np.linalg.cholesky(scale**2 * alike + scatter**2 * np.eye(len(errors)))
            solved = np.linalg.solve(root, errors)
            likelihood = -0.5 * float(solved @ solved) - float(np.log(np.diag(root)).sum())
            found.append((likelihood, scale, likeness, root, solved))
    most = max(fit[0] for fit in found)
    weights = [math.exp(fit[0] - most) for fit in found]
    kept = [(w / sum(weights), *fit[1:]) for w, fit in zip(weights, found) if w / sum(weights) > _WEIGHT]
    total = sum(fit[0] for fit in kept)
    return [(fit[0] / total, *fit[1:]) for fit in kept]
