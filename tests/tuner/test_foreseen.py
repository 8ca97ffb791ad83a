"""Foreseen: a product's default is that of its rounded number of rows, in whatever order problems are asked."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tuner_samples import launches

import kgen
from kgen.dsl.errors import KgenError
from kgen.dsl.family import family_of, has_kernel, normalised
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import TARGETS
from kgen.ops import operators
from kgen.runtime import dispatch
from kgen.tuner import chooser, foreseen, recorded
from kgen.tuner.best import best
from kgen.tuner.foreseen import first, rounded, rows_of, with_rows
from kgen.tuner.traced import sizes_of

H200, H100, A100 = (TARGETS[name] for name in ("H200", "H100 SXM", "A100-SXM4-80GB"))
TN = {"b": "col"}
#: N and K of layers of models that people use.
LAYERS = ((6144, 4096), (4096, 14336), (2560, 9728), (7168, 2048), (1152, 4304))


@pytest.fixture(autouse=True)
def nothing_foreseen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    chooser.load()
    new_process(monkeypatch, {})
    yield
    foreseen.wait()  # of what a test leaves nothing is for the next


def new_process(monkeypatch: pytest.MonkeyPatch, disk: dict[Any, bytes]) -> None:
    """A process that finds this on disk, and keeps there what it foresees."""
    monkeypatch.setattr(foreseen, "_lines", {})
    monkeypatch.setattr(foreseen, "_at_hand", set())
    monkeypatch.setattr(foreseen, "found_on_disk", lambda *of: disk.get(of))
    monkeypatch.setattr(foreseen, "kept", lambda *of: disk.setdefault(of[:3], of[3]()))


def product(m: int, n: int, k: int, **of: Any) -> NormalProblem:
    return normalised(kgen.hgemm.problem(M=m, N=n, K=k, **{"dtype": "bf16", "layouts": TN} | of))


def told(schedule: type[Schedule] = kgen.WgmmaGemm) -> set[int]:
    """The numbers of rows of a schedule's only line that are known."""
    (line,) = (line for (of, *_), line in foreseen._lines.items() if of is schedule)
    return {rows for rows in foreseen._ROWS if line.at(rows)}


def test_rows_are_rounded_up() -> None:
    found = [rounded(rows) for rows in range(1, 8400)]
    assert all(a <= b and b - a < 1 + a / 32 for a, b in zip(range(1, 8400), found))
    assert found == sorted(found)
    assert [rounded(rows) for rows in found] == found
    assert {*found[1:8192]} == {*foreseen._ROWS}
    assert [rounded(rows) for rows in (256, 257, 1024, 1025, 8191, 8193)] == [256, 264, 1024, 1040, 8192, 8193]


def test_the_second_number_of_rows_has_all_foreseen() -> None:
    drawn = random.Random(3)
    asked = [product(rows, 6144, 4096) for rows in (777, 50)]
    one_by_one = [first(kgen.WgmmaGemm, problem, H200) for problem in asked]
    foreseen.wait()
    assert told() == {*foreseen._ROWS}
    assert [first(kgen.WgmmaGemm, problem, H200) for problem in asked] == one_by_one
    for _ in range(100):
        problem = product(round(2 ** drawn.uniform(1, 13)), 6144, 4096)
        config, seconds = first(kgen.WgmmaGemm, problem, H200)
        at = with_rows(problem, rounded(problem.sizes["M"]))
        assert [config] == best(kgen.WgmmaGemm, at, H200)
        assert seconds == pytest.approx(config.estimate(at, H200), rel=1e-12)
        assert dispatch.default(problem, H200).config == config
    assert [key[0] for key in foreseen._lines].count(kgen.WgmmaGemm) == 1


def test_the_next_process_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk: dict[Any, bytes] = {}
    new_process(monkeypatch, disk)
    problems = [product(rows, 6144, 4096) for rows in (777, 50, 3, 200, 8192)]
    known = [first(kgen.WgmmaGemm, problem, H200) for problem in problems[:2]]
    foreseen.wait()
    known += [first(kgen.WgmmaGemm, problem, H200) for problem in problems[2:]]
    new_process(monkeypatch, disk)
    monkeypatch.setattr(foreseen, "with_seconds", lambda *given: pytest.fail("asked again"))
    assert [first(kgen.WgmmaGemm, problem, H200) for problem in problems] == known
    configs = [first(kgen.WgmmaGemm, product(rows, 6144, 4096), H200)[0] for rows in (777, 780)]
    assert configs[0] is configs[1]
    assert [*map(type, configs[0].values.values())] == [*map(type, known[0][0].values.values())]


def test_a_few_rows_are_foreseen_for_a_schedule_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in (3, 5):
        first(kgen.Gemv, product(rows, 6144, 4096), H200)
    foreseen.wait()
    assert told(kgen.Gemv) == {rows for rows in range(2, 100) if kgen.Gemv.applies(product(rows, 6144, 4096))}
    for rows in range(2, 9):  # of three classes
        assert [first(kgen.Gemv, product(rows, 6144, 4096), H200)[0]] == best(
            kgen.Gemv, product(rows, 6144, 4096), H200
        )


def test_what_serves_few_rows_is_foreseen_too() -> None:
    for rows in (777, 50):
        first(kgen.WgmmaGemm, product(rows, 6144, 4096), H200)
    foreseen.wait()
    assert told(kgen.Gemv) == {2, 3, 4, 5, 6, 7, 8}


def test_where_a_line_is_told_on_disk_the_classes_of_others_are_read_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    disk: dict[Any, bytes] = {}
    new_process(monkeypatch, disk)
    for rows in (777, 50):
        first(kgen.WgmmaGemm, product(rows, 6144, 4096), H200)
    foreseen.wait()
    new_process(monkeypatch, disk)
    monkeypatch.setattr(recorded, "_known", {})
    first(kgen.WgmmaGemm, product(777, 6144, 4096), H200)
    foreseen.wait()
    for rows, schedule in ((300, kgen.WgmmaGemm), (7, kgen.WgmmaGemm), (7, kgen.Gemv)):
        assert recorded._known[recorded.class_key(schedule, product(rows, 4096, 14336), H200)].found


def test_one_number_of_rows_has_nothing_foreseen() -> None:
    for rows in (777, 777, 778, 784):
        first(kgen.WgmmaGemm, product(rows, 6144, 4096), H200)
    foreseen.wait()
    assert told() == {784}


def test_without_the_library_the_default_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, choose = [product(rows, 2560, 9728) for rows in (263, 301, 1111)], chooser.function
    first(kgen.WgmmaGemm, problems[0], H200)
    first(kgen.WgmmaGemm, problems[1], H200)
    foreseen.wait()
    known = [first(kgen.WgmmaGemm, problem, H200)[0] for problem in problems]
    new_process(monkeypatch, {})
    monkeypatch.setattr(chooser, "function", lambda: None)
    assert [first(kgen.WgmmaGemm, problem, H200)[0] for problem in problems] == known
    foreseen.wait()
    assert told() == {264, 304, 1120, *foreseen._FEW}
    monkeypatch.setattr(chooser, "function", choose)
    first(kgen.WgmmaGemm, product(3000, 2560, 9728), H200)  # it is tried again
    foreseen.wait()
    assert told() == {*foreseen._ROWS}


def test_what_is_near_the_best_at_the_very_number_of_rows() -> None:
    for target in (H200, H100, A100):
        drawn, behind = random.Random(5), []
        for _ in range(150):
            n, k = drawn.choice(LAYERS)
            problem = product(round(2 ** drawn.uniform(1, 13)), n, k, layouts=drawn.choice((TN, {})))
            found = dispatch.default(problem, target).config
            (exact,) = best(type(found), problem, target)
            behind.append(found.estimate(problem, target) / exact.estimate(problem, target) - 1)
        assert np.mean(behind) < 0.001
        assert max(behind) < 0.1


def rows_or_size(drawn: random.Random, is_first: bool) -> int:
    """Any number of rows; another size that products have."""
    return round(2 ** drawn.uniform(1, 13)) if is_first else drawn.choice((8, 64, 100, 1024, 4096, 12288))


PRODUCTS = [
    name
    for name, operator in sorted(operators().items())
    if any(s.recorded for graph in operator.graphs if has_kernel(graph) for s in family_of(graph).schedules)
]


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_default_of_more_rows_is_valid(name: str) -> None:
    """Of every operator, dtype and target: a rule that held for more rows alone would make a kernel that is wrong."""
    for problem in launches(name, 6, rows_or_size):
        if problem.empty:
            continue
        for schedule in (s for s in family_of(problem.graph).schedules if s.recorded and s.applies(problem)):
            places = rows_of(problem)
            if places is not None:
                sizes = sizes_of(problem)
                assert {sizes[place] for place in places} == {problem.sizes["M"]}
                at = with_rows(problem, rounded(problem.sizes["M"]))
                assert [o.strides for o in at.operands] == [o.strides for o in problem.operands]
                assert schedule.class_of(at) == schedule.class_of(problem)
                assert recorded.class_key(schedule, at, H200) == recorded.class_key(schedule, problem, H200)
            for target in (t for t in (H200, A100) if schedule.target.runs_on(t.arch)):
                try:
                    config: Schedule = first(schedule, problem, target)[0]
                except KgenError:
                    continue
                assert not config.broken(problem, target), (problem, config)


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_is_foreseen_is_what_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every operator, dtype, schedule and target, at numbers of rows of each step."""
    count = 0
    drawn = [problem for problem in launches(name, 8, rows_or_size) if not problem.empty and rows_of(problem)]
    problems = {problem.graph.digest: problem for problem in drawn}.values()
    for problem in problems:
        for schedule in (s for s in family_of(problem.graph).schedules if s.recorded and s.applies(problem)):
            for target in (t for t in (H200, A100) if schedule.target.runs_on(t.arch)):
                new_process(monkeypatch, {})
                asked = [with_rows(problem, rows) for rows in (2, 3, 5, 8, 100, 512, 1040, 3008, 8192)]
                asked = [one for one in asked if rows_of(one) and schedule.applies(one)]
                try:
                    for one in asked[:2]:
                        first(schedule, one, target)
                except KgenError:
                    continue
                foreseen.wait()
                (line,) = (line for (of, *_), line in foreseen._lines.items() if of is schedule)
                for one in asked:
                    (config, seconds), (wanted,) = first(schedule, one, target), best(schedule, one, target)
                    assert config == wanted, one
                    assert seconds == pytest.approx(wanted.estimate(one, target), rel=1e-12)
                count += line.all_told is not None
    # One column, scales of many rows, groups: of these something else follows from M.
    assert count or name in ("hgemv", "sgemv", "fp8gemm_blockwise", "fp8gemm_vectorwise", "grouped_hgemm"), drawn


@pytest.mark.parametrize(
    "problem",
    [
        product(4096, 4096, 1024),  # equal sizes tell nothing
        product(777, 6144, 4096, layouts={"a": "col"}),  # a stride follows from M
        product(1, 6144, 4096),
        product(8193, 6144, 4096),
        product(777, 1, 4096),
        product(777, 6144, 4096, leading=3, layouts={}),
    ],
    ids=str,
)
def test_what_is_asked_as_it_is(problem: NormalProblem) -> None:
    if problem.leading or len(problem.bindings) > 3:
        assert rows_of(problem) is None
    for _ in range(2):
        assert [first(kgen.WgmmaGemm, problem, H200)[0]] == best(kgen.WgmmaGemm, problem, H200)
    assert not foreseen._lines


def test_few_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreseen, "_MOST", 3)
    for n in (512, 1024, 2048, 4096, 8192):
        first(kgen.WgmmaGemm, product(100, n, 768), H200)
    assert len(foreseen._lines) == 2
