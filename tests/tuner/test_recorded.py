"""A recorded choice is the one that is made array by array: of every operator that has such, and of every op that is traced."""

import ctypes
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuner_samples import launches

import kgen
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import TARGETS, Target
from kgen.dsl.vector import at_least, at_most
from kgen.ops import operators
from kgen.tuner import chooser, columns, instructions, pauses, recorded
from kgen.tuner.best import best
from kgen.tuner.best import by_columns as timed_by_columns
from kgen.tuner.instructions import Arrays, Found, Instructions, Part, Rows, part
from kgen.tuner.traced import OPS, NotTraced, Trace, form_of, sizes_of, traced
from kgen.tuning_db import machines

H200, A100 = TARGETS["H200"], TARGETS["A100-SXM4-80GB"]
SIZES = (1, 2, 8, 16, 24, 64, 100, 256, 1000, 1024, 4096, 12288)


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    chooser.load()


@pytest.fixture(autouse=True)
def all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_known", {})


def by_columns(
    schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, count: int
) -> list[Schedule]:
    return [config for config, _ in timed_by_columns(schedule, problem, target, reach, count)]


def recorded_best(
    schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, count: int
) -> list[Schedule] | None:
    """The configs of a recorded choice, with the times that the model gives each."""
    found = recorded.best(schedule, problem, target, reach, count)
    if found is None:
        return None
    configs = [config for config, _ in found]
    assert [s for _, s in found] == pytest.approx([c.estimate(problem, target) for c in configs], rel=1e-12)
    return configs


def told(
    schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, count: int
) -> list[Schedule] | None:
    """A recorded choice, once it is recorded."""
    found = recorded_best(schedule, problem, target, reach, count)
    if found is None:
        chosen = by_columns(schedule, problem, target, reach, count)[:count]
        recorded.record(schedule, problem, target, reach, chosen)
        recorded.wait()
        found = recorded_best(schedule, problem, target, reach, count)
    return found


def product(m: int, n: int, k: int, dtype: str = "bf16", layouts: dict[str, str] | None = None) -> NormalProblem:
    return normalised(kgen.hgemm.problem(M=m, N=n, K=k, dtype=dtype, layouts=layouts))


def asked(name: str, count: int) -> Iterator[tuple[type[Schedule], NormalProblem, Target]]:
    for problem in launches(name, count, lambda drawn, _: drawn.choice(SIZES), 2):
        for schedule in family_of(problem.graph).schedules:
            for target in (H200, A100):
                there = schedule.recorded and not problem.empty and schedule.target.runs_on(target.arch)
                if there and schedule.applies(problem):
                    yield schedule, problem, target


@pytest.mark.parametrize("name", sorted(operators()))
def test_a_recorded_choice_is_the_one_by_columns(name: str) -> None:
    for schedule, problem, target in asked(name, 4):
        reach = 32 if schedule.last else 3
        found = told(schedule, problem, target, reach, 3)
        if found is not None:
            assert found == by_columns(schedule, problem, target, reach, 3), (problem, target)


@pytest.mark.parametrize("schedule", [kgen.WgmmaGemm, kgen.MmaGemm, kgen.SimtGemm, kgen.Gemv])
def test_products_are_recorded_once_a_class(schedule: type[Schedule]) -> None:
    drawn = random.Random(schedule.__name__)
    count = 0
    for _ in range(40):
        m = drawn.randint(1, 8) if schedule is kgen.Gemv else round(2 ** drawn.uniform(1, 13))
        n, k = 8 * drawn.randint(1, 2000), 8 * drawn.randint(1, 2000)
        problem = product(m, n, k, drawn.choice(("f16", "bf16")), drawn.choice((None, {"b": "col"})))
        if schedule.applies(problem):
            reach = 32 if schedule.last else 1
            assert told(schedule, problem, H200, reach, 1) == by_columns(schedule, problem, H200, reach, 1)
            count += 1
    assert count > 20
    found = [len(one.found) for one in recorded._known.values()]
    assert found
    # A row of one matrix, or a column of the other, costs a question of its own.
    assert max(found) <= 2


def test_a_class_has_recordings_for_answers_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking(kgen.WgmmaGemm):  # type: ignore[misc, name-defined]  # a schedule that is loaded when it is asked for
        def estimate(self, problem: Problem, target: Target) -> Any:
            seconds = super().estimate(problem, target)
            return seconds if problem.sizes["M"] < 500 else -seconds

    for m in (80, 800, 81, 801):
        problem = product(m, 1024, 4096)
        assert told(Asking, problem, H200, 32, 2) == by_columns(Asking, problem, H200, 32, 2)
    (recordings,) = recorded._known.values()
    assert len(recordings.found) == 2


def test_what_is_kept_serves_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = product(304, 6144, 4096)
    first = told(kgen.WgmmaGemm, problem, H200, 32, 4)
    assert first
    monkeypatch.setattr(recorded, "_known", {})

    def never(*given: Any) -> Any:
        raise AssertionError("recorded again")

    monkeypatch.setattr(recorded, "problem_class", never)
    assert recorded_best(kgen.WgmmaGemm, problem, H200, 32, 4) == first
    assert recorded_best(kgen.WgmmaGemm, product(8, 1024, 4096), H200, 32, 1)


def test_without_the_library_the_choice_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = product(304, 6144, 4096)
    found = told(kgen.WgmmaGemm, problem, H200, 32, 3)
    assert best(kgen.WgmmaGemm, problem, H200, 3) == found
    monkeypatch.setattr(chooser, "function", lambda: None)
    assert told(kgen.WgmmaGemm, problem, H200, 32, 3) is None
    assert best(kgen.WgmmaGemm, problem, H200, 3) == found


def test_where_no_config_is_valid_the_reasons_are_told() -> None:
    with pytest.raises(ConfigError, match="no WgmmaGemm config is valid"):
        best(kgen.WgmmaGemm, product(64, 0, 64), H200)


def test_a_recording_is_of_the_constants_of_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `kgen fit` writes to the user's folder counts from then on, for recordings that were kept too."""
    problem = product(130, 4096, 14336)
    first = told(kgen.WgmmaGemm, problem, H200, 32, 1)
    assert first
    (shipped,) = [machine for machine in machines.machines() if machine.gpu == "H200"]
    fitted = shipped.models["gemm_wgmma"]
    dear = replace(fitted, constants={**fitted.constants, "split_start": 1.0, "stream_start": 1.0})
    monkeypatch.setattr(machines, "user_folder", lambda: tmp_path)
    machines.write_machine(tmp_path / "h200.json", replace(shipped, models={**shipped.models, "gemm_wgmma": dear}))
    machines.forget()
    try:
        monkeypatch.setattr(columns, "_known", {})
        found = told(kgen.WgmmaGemm, problem, H200, 32, 1)
        assert found == by_columns(kgen.WgmmaGemm, problem, H200, 32, 1)
        assert found != first
    finally:
        monkeypatch.undo()
        machines.forget()


def test_what_chooses_otherwise_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = product(304, 6144, 4096)
    monkeypatch.setattr(recorded, "found_on_disk", lambda schedule, of, target: None)
    monkeypatch.setattr(recorded, "kept", lambda schedule, of, target, make: make())
    other = by_columns(kgen.WgmmaGemm, product(16, 512, 4096), H200, 32, 1)
    recorded.record(kgen.WgmmaGemm, problem, H200, 32, other)
    recorded.wait()
    assert recorded_best(kgen.WgmmaGemm, problem, H200, 32, 1) is None


def test_a_recording_gives_way_to_a_call_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = product(304, 6144, 4096)
    monkeypatch.setattr(recorded, "found_on_disk", lambda schedule, of, target: None)
    monkeypatch.setattr(recorded, "kept", lambda schedule, of, target, make: make())
    monkeypatch.setattr(recorded, "_known", {})
    monkeypatch.setattr(pauses, "_PAUSE", 1.0)
    chosen = by_columns(kgen.WgmmaGemm, problem, H200, 32, 1)
    with pauses.paused():
        recorded.record(kgen.WgmmaGemm, problem, H200, 32, chosen)
        time.sleep(0.1)  # one takes 40 ms without
        assert recorded_best(kgen.WgmmaGemm, problem, H200, 32, 1) is None
    recorded.wait()
    assert recorded_best(kgen.WgmmaGemm, problem, H200, 32, 1) == chosen


def test_the_interpreters_lock_is_handed_over_soon_while_calls_are_under_way() -> None:
    usual = sys.getswitchinterval()
    with pauses.paused():
        assert sys.getswitchinterval() < 0.001
        other = threading.Thread(target=_paused_once)
        other.start()
        other.join()
        assert sys.getswitchinterval() < 0.001
    assert sys.getswitchinterval() == usual


def _paused_once() -> None:
    with pauses.paused():
        pass


def test_a_call_that_compiles_is_not_waited_for() -> None:
    with pauses.paused():
        begun = time.monotonic()
        pauses.rest()
        assert time.monotonic() - begun >= 0.015
        begun = time.monotonic()
        for _ in range(100):
            pauses.rest()
        assert time.monotonic() - begun < 0.5


def test_a_traced_problem_is_in_no_cache_of_others() -> None:
    problem = product(304, 6144, 4096)
    _, made = traced(problem)
    assert made.form != problem.form
    assert hash(made) != hash(problem)


# The ops.


ROWS = 300


def seconds_of(made: Callable[[Any, np.ndarray, np.ndarray], Any], sizes: list[int]) -> np.ndarray:
    """What C++ makes of an expression of a size and of two columns, by row."""
    trace = Trace(sizes)
    drawn = np.random.default_rng(0)
    columns = [drawn.integers(1, 50, (ROWS, 1)).astype(float), drawn.uniform(0.5, 9, (ROWS, 1))]
    seconds = trace.of(made(trace.inputs[0], *columns))
    arrays = Arrays()
    valid, plain = Instructions(trace, [trace.of(True)]), Instructions(trace, [seconds, trace.of(0)])
    whole = Instructions(trace, [trace.of(True), seconds])
    code, numbers = instructions.numbers(trace)
    rows = Rows(trace, ROWS, 1, [valid], arrays)
    about = {"begins": rows.begins, "places": rows.places, "groups": rows.groups, "last": 1, "fields": {}}
    about |= {"table": 0, "variant": 0, "variants": 1}
    for name, one in {"valid": valid, "plain": plain, "whole": whole}.items():
        about[name] = one.described(arrays, rows.columns(one.columns, one is valid, arrays))
    about, arrays = Arrays.read(arrays.written(about))
    kept: list[Any] = []
    parts = (Part * 1)(part(about, arrays, kept))
    found = (Found * ROWS)()
    there = (ctypes.c_int32 * 1)()
    chooser.function()(
        *(code.ctypes.data, len(code), numbers.ctypes.data, len(numbers)),
        *((ctypes.c_double * len(sizes))(*sizes), len(sizes), 1, parts, 1, 1, ROWS, ROWS, found, there),
    )
    assert there[0] == ROWS
    result = np.zeros(ROWS)
    for one in found:
        result[arrays.found[about["places"]][one.row]] = one.seconds
    wanted = np.broadcast_to(made(sizes[0], *columns), (ROWS, 1))[:, 0]
    np.testing.assert_allclose(result, wanted.astype(float), rtol=1e-15, atol=0)
    return result


BINARY = [name for name in OPS if name not in ("where", "gcd") and not name.startswith("logical")]
UNARY = ("negative", "ceil", "floor", "rint", "sqrt", "log2")


@pytest.mark.parametrize("name", [name for name in BINARY if name not in UNARY])
def test_ops_of_two(name: str) -> None:
    op = getattr(np, name)
    seconds_of(lambda n, a, b: op(a, n) * 1.0 + op(n, a), [7])
    seconds_of(lambda n, a, b: op(b * n, a + n), [7])
    seconds_of(lambda n, a, b: op(n, 3) * a, [7])


@pytest.mark.parametrize("name", UNARY)
def test_ops_of_one(name: str) -> None:
    op = getattr(np, name)
    seconds_of(lambda n, a, b: op(b * n), [7])
    seconds_of(lambda n, a, b: op(n * 0.3) + a, [7])


def test_ops_of_truth_values() -> None:
    def chosen(n: Any, a: np.ndarray, b: np.ndarray) -> Any:
        wide, low, right = a > n, b * n < 30, n >= 7
        both = np.where(wide & low, 1.0, 2.0) + np.where(wide | low, 4.0, 8.0) + np.where(~wide, 16.0, 32.0)
        return (
            both
            + np.where(wide, b, a)
            + np.where(low, a * n, 5.0)
            + np.where(right, a, b)
            + np.where(right & wide, n, a)
        )

    seconds_of(chosen, [7])


def test_divisors_and_steps() -> None:
    seconds_of(lambda n, a, b: np.gcd(n, a.astype(int)) + np.gcd(n * 4, 6), [84])
    values = (1, 2, 4, 8, 32)
    for n in (1, 3, 8, 9, 100):
        seconds_of(
            lambda n, a, b: at_most(n * a, values, 7) + 100 * at_least(a // n, values, 9) + at_most(n, values, 3), [n]
        )


def test_lines_of_c_plus_plus_know_the_ops() -> None:
    text = chooser.SOURCE.read_text()
    listed = text[text.index("enum Op") : text.index("};", text.index("enum Op"))].split("{")[1]
    names = {"LESS_EQUAL": "LESS_EQUAL", "AND": "LOGICAL_AND", "OR": "LOGICAL_OR", "NOT": "LOGICAL_NOT"}
    found = [names.get(name.strip(), name.strip()) for name in listed.replace("\n", "").split(",") if name.strip()]
    assert found == [*(op.upper() for op in OPS), "GUARD", "ALIVE"]


def test_what_cannot_be_traced_is_refused() -> None:
    _, problem = traced(product(64, 512, 1024))
    m = problem.operands[0].shape[0]
    column = m * np.ones((4, 1))
    for refused in (
        lambda: int(m),
        lambda: range(m),
        lambda: f"{m}",
        lambda: str(problem),
        lambda: problem.origin.sizes,  # type: ignore[union-attr]
        lambda: bool(column > 3),
        lambda: m & 3,
        lambda: np.add.reduce(column),
        lambda: np.sort(column),
        lambda: Trace([1]).inputs[0] + m,
        lambda: m + np.array(["a"]),
        lambda: m + "a",
        lambda: (column > 3) + (column > 5),
    ):
        with pytest.raises(TypeError):
            refused()  # type: ignore[no-untyped-call]
    assert issubclass(NotTraced, TypeError)


def test_questions_become_guards() -> None:
    trace, problem = traced(product(64, 512, 1024))
    m, k = problem.operands[0].shape
    assert not trace.guards
    assert m < k
    assert not m > 100
    assert math.ceil(m / 3) == 22
    assert m == m
    assert len(trace.guards) == 3


def test_equal_values_are_noted_once() -> None:
    trace = Trace([5, 6])
    a, b = trace.inputs
    before = (a + b) * 2
    count = len(trace.nodes)
    assert ((a + b) * 2).place == before.place
    assert (a * 1).place == a.place
    assert (a / 1).place == a.place
    assert np.where(a > b, b, b).place == b.place
    assert len(trace.nodes) == count + 2  # the 1, and the comparison


def test_a_form_has_what_sizes_have_not() -> None:
    problem = product(64, 512, 1024)
    assert len(sizes_of(problem)) == 3 * 4 + 3
    assert form_of(problem) == form_of(product(8, 24, 4096))
    assert form_of(problem) != form_of(product(64, 516, 1024))
