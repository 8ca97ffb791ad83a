"""Defaults of rows, reductions, scans and pointwise operators are the model's best of what is nearest to measurements."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import kgen
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.problem import NormalProblem, Problem, Sizes
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import TARGETS, Target
from kgen.ops import operators
from kgen.tuner import columns
from kgen.tuner.candidates import Candidates

H200, A100 = TARGETS["H200"], TARGETS["A100-SXM4-80GB"]
LENGTHS = (1, 2, 3, 8, 15, 16, 31, 33, 63, 64, 100, 128, 255, 768, 1000, 1024, 4095, 4096, 16384, 50257, 131072, 262144)
NAMES = (
    "softmax",
    "layer_norm",
    "cross_entropy",
    "softmax_backward",
    "reduce_sum",
    "reduce_argmax",
    "column_sum",
    "batch_norm_stats",
    "cumsum",
    "gelu",
    "bias_gelu",
    "rope",
    "rope_computed",
)


def problems(name: str, count: int) -> Iterator[NormalProblem]:
    source = random.Random(name)
    for _ in range(count):
        graph = source.choice(operators()[name].graphs)
        sizes: Sizes = {dim: source.choice(LENGTHS) for dim in graph.dims}
        if name.startswith("rope"):
            sizes = {**sizes, "D": source.choice((32, 64, 100, 128))}
        rows = source.choice((1, 17, 128, 1024, 8192))
        yield normalised(Problem.dense(graph, {**sizes, "...": (rows,)}))


def asked(name: str, count: int) -> Iterator[tuple[type[Schedule], NormalProblem, Target]]:
    for i, problem in enumerate(problems(name, count)):
        target = A100 if i % 4 == 0 else H200
        for schedule in family_of(problem.graph).schedules:
            if schedule.__name__ == "Transpose" or not schedule.target.runs_on(target.arch):
                continue
            if schedule.applies(problem) and schedule.worth_searching(problem, target):
                yield schedule, problem, target


def default(schedule: type[Schedule], problem: NormalProblem, target: Target) -> Schedule | None:
    try:
        return schedule.default(problem, target)
    except ConfigError:
        return None


@pytest.mark.parametrize("name", NAMES)
def test_a_default_is_the_best_of_all_one_by_one(name: str) -> None:
    compared = 0
    for schedule, problem, target in asked(name, 12):
        chosen = default(schedule, problem, target)
        if chosen is None:
            continue
        known = columns.problem_class(schedule, problem, target)
        configs = [config for table in known.of(problem, target) for config in table.configs()]
        assert chosen in configs
        assert not chosen.rejections(problem, target)
        misfits = [config.misfit(problem, target) for config in configs]
        nearest = [config for config, misfit in zip(configs, misfits) if misfit == min(misfits)]
        assert chosen in nearest
        least = min(config.estimate(problem, target) for config in nearest)
        assert chosen.estimate(problem, target) == pytest.approx(least, rel=1e-12)
        assert not any(
            config.rejections(problem, target) for config in random.Random(0).sample(configs, min(5, len(configs)))
        )
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize("name", NAMES)
def test_what_is_prepared_for_a_class_is_right_for_each_of_its_problems(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*asked(name, 25)]
    shared = [default(*one) for one in given]
    for one, found in zip(given, shared):
        monkeypatch.setattr(columns, "_known", {})
        assert default(*one) == found, one


def rowwise(name: str, rows: int, length: int, dtype: str = "f16") -> Schedule:
    graph = next(g for g in operators()[name].graphs if g.inputs[0].dtype.name == dtype)
    problem = normalised(Problem.dense(graph, {"...": (rows,), **dict.fromkeys(graph.dims, length)}))
    return family_of(graph).schedules[0].default(problem, H200)


@pytest.mark.parametrize("length", [15, 31, 33, 63, 65, 127])
def test_short_rows_of_odd_length_have_shifted_vectors(length: int) -> None:
    config = rowwise("softmax", 2**26 // length, length)
    assert config.values["shift"] is True
    assert config.values["pack"] in (2, 4, 8)


@pytest.mark.parametrize(("length", "threads"), [(256, 16), (1024, 64), (4096, 256), (8192, 512)])
def test_a_thread_has_32_bytes_of_a_short_row(length: int, threads: int) -> None:
    assert rowwise("softmax", 2**27 // length, length).values["row_threads"] == threads


def test_two_equal_times_are_one_vector_a_thread() -> None:
    graph = operators()["gelu"].graphs[0]
    problem = normalised(Problem.dense(graph, {"...": (2**27,)}))
    config = family_of(graph).schedules[0].default(problem, H200)
    assert [config.values[name] for name in ("pack", "items", "threads", "load")] == [8, 1, 128, "evict_last"]


@pytest.mark.parametrize(("rows", "columns", "dtype"), [(2, 1789564, "f32"), (4, 395875, "f32"), (2, 2553953, "f16")])
def test_few_long_rows_are_transposed_without_tiles(rows: int, columns: int, dtype: str) -> None:
    """What a warp reads lies side by side in each of so few rows: at best 8.8, 5.0 and 10 us, by tiles 24, 9 and 38."""
    problem = normalised(kgen.transpose.problem({"...": (1,), "M": rows, "N": columns}, dtype=dtype))
    assert isinstance(Candidates(problem, H200).default, kgen.Elementwise)
