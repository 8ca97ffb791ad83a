"""Forecast: what configs take at sizes where nobody timed them, by the model and by what was timed nearby.

Models know where a tile or a wave more is begun, and are off by a factor that changes slowly with the sizes. So a forecast is the
model's time times the ratio of measured to modelled times, interpolated between the sizes at which the config was timed by the
inverse of their distance (Shepard, A two-dimensional interpolation function for irregularly-spaced data, 1968); distances are of
the sizes' logarithms. Far from all of these it is the ratio that all configs have there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgen.tuner.division import Point

C = TypeVar("C", bound=Hashable)
#: A ratio counts by the distance to this power, and what all configs have there as one at a distance of _FAR.
_POWER, _FAR = 3, 1.0
#: The distance below which nearer ones count no more.
_NEAR = 1e-3


class Forecast(Generic[C]):
    """Times that were measured, and those forecast from them. `modelled` gives the seconds of configs at some sizes by the model;
    inf where one is not valid."""

    def __init__(self, modelled: Callable[[Sequence[C], Point], Sequence[float]]) -> None:
        self._model = modelled
        self._modelled: dict[Point, dict[C, float]] = {}
        #: Seconds of the configs that were timed at some sizes; inf of those that are not right there.
        self.times: dict[Point, dict[C, float]] = {}
        #: Of each config the logarithms of measured over modelled seconds, at the places in `_timed`; and their mean there.
        self._ratios: dict[C, dict[int, float]] = {}
        self._timed: list[Point] = []
        self._means: list[float] = []

    def add(self, sizes: Point, asked: Iterable[C], times: Mapping[C, float]) -> None:
        """Takes what was timed at some sizes; what was asked for and has no time counts as not valid there.

        Those that were timed there before are brought to the state that the GPU is in now by those that were timed again.
        """
        own = self.times.setdefault(sizes, {})
        again = [math.log(times[config] / own[config]) for config in times if own.get(config, math.inf) < math.inf]
        if again:
            now = math.exp(sum(again) / len(again))
            own.update({config: t * now for config, t in own.items()})
        own.update({config: times.get(config, math.inf) for config in asked})
        pairs = zip(own.items(), self.modelled([*own], sizes))
        ratios = {config: math.log(t) - model for (config, t), model in pairs if t < math.inf and model < math.inf}
        if not ratios:
            return
        if sizes not in self._timed:
            self._timed.append(sizes)
            self._means.append(0.0)
        place = self._timed.index(sizes)
        self._means[place] = sum(ratios.values()) / len(ratios)
        for config, ratio in ratios.items():
            self._ratios.setdefault(config, {})[place] = ratio

    def timed(self, config: C) -> bool:
        """Whether it was timed anywhere."""
        return config in self._ratios

    def modelled(self, configs: Sequence[C], sizes: Point) -> list[float]:
        """The logarithms of the model's seconds."""
        known = self._modelled.setdefault(sizes, {})
        lacking = [config for config in configs if config not in known]
        if lacking:
            seconds = self._model(lacking, sizes)
            known.update((config, math.log(t) if t < math.inf else math.inf) for config, t in zip(lacking, seconds))
        return [known[config] for config in configs]

    def table(self, configs: Sequence[C], points: Sequence[Point]) -> NDArray[np.float64]:
        """The logarithms of seconds, [points, configs]: as timed where that was done, else forecast; inf where not valid."""
        found = np.array([self.modelled(configs, sizes) for sizes in points], dtype=np.float64)
        found = found.reshape(len(points), len(configs))
        if self._timed and points:
            weights = _weights(_logarithms(points), _logarithms(self._timed))
            everywhere = weights @ np.array(self._means) / weights.sum(1)
            far = _FAR**-_POWER
            for column, config in enumerate(configs):
                ratios = self._ratios.get(config, {})
                near = weights[:, [*ratios]]
                found[:, column] += (near @ np.array([*ratios.values()]) + far * everywhere) / (near.sum(1) + far)
        for row, sizes in enumerate(points):
            times = self.times.get(sizes, {})
            for column, config in enumerate(configs if times else ()):
                if config in times:
                    found[row, column] = math.log(times[config]) if times[config] < math.inf else math.inf
        return found


def _logarithms(points: Sequence[Point]) -> NDArray[np.float64]:
    return np.log(np.array(points, dtype=np.float64))


def _weights(points: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each of `places` counts at each of `points`, [points, places]; both as logarithms of sizes."""
    squares = ((points[:, None] - places[None]) ** 2).sum(2)
    weights: NDArray[np.float64] = np.maximum(squares, _NEAR**2) ** (-_POWER / 2)
    return weights
