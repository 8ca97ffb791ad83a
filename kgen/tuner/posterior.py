"""Posterior: what the times of the configs tried say of those that are left, and the chance that one of them is faster.

The logarithm of a config's time is the model's, plus one offset for all (the median error of the faster half), plus an error
that is alike for configs that are alike: a Gaussian process with covariance s^2 rho^d over the d fields in which two configs
differ, and the scatter of times of one config. s, rho and the scatter are not chosen: each triple of a small grid counts by its
likelihood. Of a GPU at its power limit times scatter by percents, which would otherwise count as what fields make of a config.
More than `CLIP` over the best counts as that much, by the clock and by the model: how slow a bad config is says nothing of
good ones.

The chance that any config left is more than GAIN faster than the best is read from joint draws of those likeliest to be.
Gaussian process regression: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapter 2; choosing
what is likeliest to improve: Kushner (1964).
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
from threadpoolctl import ThreadpoolController

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

#: Of the normal distribution: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.2.17, within 7.5e-8.
_NORMAL = (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530, 0.0)


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
        self._tried = np.zeros((0, *self._codes.shape[1:]), dtype=np.int32)
        self._apart = np.zeros((0, len(self._configs)), dtype=np.intp)

    def _encode(self, configs: list[Schedule]) -> np.ndarray:
        """A row of numbers a config, equal where fields are; those of two schedules have none in common."""
        rows = [self._candidates.order(config) for config in configs]
        width = max(len(space.schedule.fields) for space in self._candidates.spaces)
        return np.array(
            [[row[0] * 1000 + value for value in (*row[1:], *[999] * (width + 1 - len(row)))] for row in rows],
            dtype=np.int32,
        )

    def learn(self, config: Schedule, seconds: float) -> None:
        """Takes a measured time."""
        if config not in self._times:
            code = self._encode([config])
            self._tried = np.concatenate([self._tried, code])
            self._apart = np.concatenate([self._apart, _differences(code, self._codes)])
        self._times[config] = seconds

    def prospect(self, taken: set[Schedule]) -> Prospect | None:
        """What the configs that are not `taken` promise; None where too little is known, or nothing is left."""
        with _blas().limit(limits=1, user_api="blas"):
            return self._prospect(taken)

    def _prospect(self, taken: set[Schedule]) -> Prospect | None:
        left = np.array([i for i, config in enumerate(self._configs) if config not in taken], dtype=int)
        if len(self._times) < LEAST or not len(left):
            return None
        tried = list(self._times)
        model = np.log([self._candidates.estimate(config) for config in tried])
        times = np.log([self._times[config] for config in tried])
        best = times.min()
        offset = np.median((times - model)[times <= np.median(times)])
        errors = np.minimum(times, best + CLIP) - np.minimum(model + offset, best + CLIP)
        expected = np.minimum(self._model[left] + offset, best + CLIP)
        target = best + math.log(1 - GAIN)

        near, apart = _differences(self._tried, self._tried), self._apart[:, left]
        promise, chance = np.zeros(len(left)), 0.0
        for weight, scale, likeness, whiten in _fits(near, errors):
            alike = likeness ** np.arange(self._codes.shape[1] + 1)
            shared = whiten @ (scale**2 * alike[apart])
            mean = expected + shared.T @ (whiten @ errors)
            spread = np.sqrt(np.maximum(scale**2 - (shared**2).sum(0), 1e-10))
            single = _below((target - mean) / spread)
            promise += weight * single
            top = np.argsort(-single, kind="stable")[:_DRAWN]
            among = _differences(self._codes[left[top]], self._codes[left[top]])
            covariance = scale**2 * alike[among] - shared[:, top].T @ shared[:, top] + 1e-7 * np.eye(len(top))
            normal = np.random.default_rng(0).standard_normal((len(top), _DRAWS))
            drawn = mean[top][:, None] + np.linalg.cholesky(covariance) @ normal
            chance += weight * float((drawn.min(0) < target).mean())
        return Prospect(self._configs[left[int(np.argmax(promise))]], chance)


@functools.cache
def _blas() -> ThreadpoolController:
    """Threads of numpy's BLAS: for such small matrices they wait for each other longer than they work, beside compilers most."""
    return ThreadpoolController()


def _below(z: np.ndarray) -> np.ndarray:
    """The chance that a standard normal number is less than z."""
    beyond = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * np.polyval(_NORMAL, 1 / (1 + 0.2316419 * np.abs(z)))
    found: np.ndarray = np.where(z < 0, beyond, 1 - beyond)
    return found


def _differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In how many fields each row of one differs from each of the other."""
    found = np.zeros((len(a), len(b)), dtype=np.intp)
    for column in range(a.shape[1]):  # one at a time: a whole cube of comparisons is slower than its sum
        found += a[:, None, column] != b[None, :, column]
    return found


def _fits(near: np.ndarray, errors: np.ndarray) -> list[tuple[float, float, float, np.ndarray]]:
    """(weight, scale, likeness, W) of each triple that the errors make likely; W is a root of the covariance's inverse, W'W.

    All scales and scatters of a likeness share the eigenvectors of its covariance.
    """
    found = []
    for likeness in _LIKENESS:
        values, vectors = np.linalg.eigh(likeness**near)
        along = vectors.T @ errors
        for scale, scatter in itertools.product(_SCALES, _SCATTER):
            variances = scale**2 * np.maximum(values, 0.0) + scatter**2
            likelihood = -0.5 * float((along**2 / variances + np.log(variances)).sum())
            found.append((likelihood, scale, likeness, variances, vectors))
    most = max(fit[0] for fit in found)
    weights = [math.exp(fit[0] - most) for fit in found]
    kept = [(w, *fit[1:]) for w, fit in zip(weights, found) if w > _WEIGHT * sum(weights)]
    total = sum(fit[0] for fit in kept)
    return [(w / total, s, likeness, vectors.T / np.sqrt(v)[:, None]) for w, s, likeness, v, vectors in kept]
