"""Boxes by regrets that are given, and forecasts by a model that is off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kgen.tuner.boxes import INVALID, Box, Cut, Tree, few, joined
from kgen.tuner.division import Point
from kgen.tuner.forecast import Forecast


def after(cut: Cut) -> int:
    return cut.after[cut.axis]


def grown(
    regrets: list[list[float]], points: list[Point] | None = None, tolerance: float = 0.02
) -> list[tuple[Box, int]]:
    places = points or [(i,) for i in range(len(regrets))]
    tree = Tree(places, np.array(regrets), np.ones(len(places)), tolerance, after)
    return [*tree.leaves(Box(min(places), max(places)))]


def test_a_box_that_one_config_serves_is_not_cut() -> None:
    assert grown([[0.02, 0.0], [0.01, 0.0], [0.0, 0.03]]) == [(Box((0,), (2,)), 0)]


def test_cuts_are_where_the_best_changes() -> None:
    found = grown([[0.0, 0.5, 0.5]] * 3 + [[0.5, 0.0, 0.5]] * 4 + [[0.5, 0.5, 0.0]] * 2)
    assert found == [(Box((0,), (2,)), 0), (Box((3,), (6,)), 1), (Box((7,), (8,)), 2)]


def test_a_box_is_cut_along_the_axis_that_decides() -> None:
    points = [(a, b) for a in range(4) for b in range(3)]
    found = grown([[0.0, 0.3] if b < 2 else [0.3, 0.0] for _, b in points], points)
    assert found == [(Box((0, 0), (3, 1)), 0), (Box((0, 2), (3, 2)), 1)]


def test_what_two_cuts_decide_together_is_cut_all_the_same() -> None:
    """No first cut of a chessboard of two by two lessens what is lost."""
    points = [(a, b) for a in range(2) for b in range(2)]
    found = grown([[0.0, 0.3] if a == b else [0.3, 0.0] for a, b in points], points)
    assert {box.low: config for box, config in found} == {(0, 0): 0, (0, 1): 1, (1, 0): 1, (1, 1): 0}


def test_the_place_of_a_cut_is_asked_for() -> None:
    asked: list[Cut] = []

    def where(cut: Cut) -> int:
        asked.append(cut)
        return 37

    tree = Tree([(0,), (64,)], np.array([[0.0, 1.0], [1.0, 0.0]]), np.ones(2), 0.02, where)
    assert [*tree.leaves(Box((0,), (64,)))] == [(Box((0,), (36,)), 0), (Box((37,), (64,)), 1)]
    assert asked == [Cut(0, (0,), (64,), (0, 1))]


def test_few_configs_are_those_that_serve_most() -> None:
    regrets = np.array([[0.0, 0.005, 0.4], [0.4, 0.005, 0.0], [0.4, 0.4, 0.0], [INVALID, INVALID, INVALID]])
    weights = np.array([1.0, 1.0, 1.0, 1.0])
    assert few(regrets, weights, 0.01, 9, 1e-4) == [1, 2]  # of the last nobody serves any
    assert few(regrets, weights, 0.01, 1, 1e-4) == [1]
    assert few(regrets, np.array([1.0, 1e-4, 1e-4, 1e-4]), 0.01, 9, 1e-3) == [1]
    assert few(np.zeros((3, 0)), np.ones(3), 0.01, 9, 1e-4) == []


def test_boxes_of_one_config_that_make_up_a_larger_one_are_joined() -> None:
    parts = [(Box((0, 0), (1, 1)), 0), (Box((0, 2), (1, 3)), 0), (Box((2, 0), (3, 3)), 0), (Box((4, 0), (4, 3)), 1)]
    assert joined(parts) == [(Box((0, 0), (3, 3)), 0), (Box((4, 0), (4, 3)), 1)]
    assert joined([]) == []


def modelled(configs: list[str], sizes: Point) -> list[float]:
    """`a` and `b` are stepped; `c` is valid up to 100."""
    steps = {"a": math.ceil(sizes[0] / 64), "b": 2 + sizes[0] / 100, "c": 1.0 if sizes[0] <= 100 else math.inf}
    return [steps[config] for config in configs]


@pytest.fixture
def forecast() -> Forecast[str]:
    return Forecast(modelled)  # type: ignore[arg-type]  # a list for a sequence


def test_without_times_a_forecast_is_the_model(forecast: Forecast[str]) -> None:
    assert np.exp(forecast.table(["a", "b", "c"], [(64,), (65,), (200,)])).tolist() == [
        pytest.approx([1, 2.64, 1]),
        pytest.approx([2, 2.65, 1]),
        pytest.approx([4, 4, math.inf]),
    ]
    assert forecast.table([], [(1,)]).shape == (1, 0)


def test_what_was_timed_is_told_and_corrects_what_is_near(forecast: Forecast[str]) -> None:
    forecast.add((64,), ["a", "b"], {"a": 1.1, "b": 2.64 * 0.8})
    forecast.add((1024,), ["a", "b"], {"a": 16 * 1.3})
    times = np.exp(forecast.table(["a", "b", "c"], [(64,), (65,), (1000,), (1024,)]))
    assert times[0].tolist() == pytest.approx(
        [1.1, 2.64 * 0.8, math.sqrt(1.1 * 0.8)]
    )  # c as the others are in the mean
    assert times[1, 0] == pytest.approx(2 * 1.1, rel=1e-3)
    assert times[2, 0] == pytest.approx(16 * 1.3, rel=1e-3)
    assert times[3, 0] == pytest.approx(16 * 1.3)
    assert times[3, 1] == math.inf  # it was asked for, and had no time
    assert times[2, 1] < math.inf
    assert forecast.timed("a")
    assert not forecast.timed("c")


def test_far_from_its_own_times_a_config_is_as_all_are(forecast: Forecast[str]) -> None:
    forecast.add((64,), ["a", "b"], {"a": 2.0, "b": 2.64})
    forecast.add((2**20,), ["a"], {"a": 2**14 * 0.5})
    (times,) = np.exp(forecast.table(["b"], [(2**19,)]))
    assert times[0] == pytest.approx(0.5 * (2 + 2**19 / 100), rel=0.03)


def test_what_was_timed_before_is_brought_to_the_state_of_now(forecast: Forecast[str]) -> None:
    forecast.add((64,), ["a", "b"], {"a": 1.0, "b": 2.0})
    forecast.add((64,), ["c", "a"], {"c": 0.9, "a": 0.8})
    assert forecast.times[64,] == pytest.approx({"a": 0.8, "b": 1.6, "c": 0.9})
    forecast.add((64,), ["a", "b"], {"a": 0.8 * 1.1, "b": 1.6 * 1.21})
    assert forecast.times[64,] == pytest.approx({"a": 0.88, "b": 1.936, "c": 0.9 * math.sqrt(1.1 * 1.21)})
    forecast.add((64,), ["a"], {})
    assert forecast.times[64,]["a"] == math.inf
