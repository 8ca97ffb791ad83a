"""Elements and positions beyond 32 bits: every schedule's default config is right there, and no kernel that counts in 32.

Of every operator it is one of the promises, see tests/promises/test_verifies.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
from cases import TARGET

from kgen import emulator
from kgen.codegen.source import Source
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import Family, family_of, normalised, schedules
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.emulator import Options
from kgen.ops import operators
from kgen.tuner.far import Far, check_far, far_problems
from kgen.tuner.ragged import ragged

_ONE_THREAD = Options(threads=1)
#: Whose blocks wait for each other, or whose results no rows follow one another in.
_NO_ROWS = {
    "LinearAttention",
    "LinearAttentionWgmma",
    "Reduce",
    "ScanSplit",
    "ColumnStats",
    "ChannelStats",
    "GatherSum",
    "ScatterAdd",
    "ScatterBins",
    "ScatterRows",
    "Nms",
}


@cache
def _near(name: str) -> tuple[Family, Problem]:
    """A problem of an operator as its suite has it, of which ragged makes a small one."""
    known = operators()[name]
    graph = known.graphs[0]
    family = family_of(graph)
    return family, family.normalise(Problem.dense(graph, family.suites(graph)["default"][-1]))


def _configs() -> Iterator[tuple[str, str]]:
    """Each schedule with the first operator that it serves."""
    seen = set()
    for name in operators():
        family, problem = _near(name)
        for schedule in family.schedules:
            if schedule.__name__ not in seen and schedule.applies(problem) and _default(schedule, problem):
                seen.add(schedule.__name__)
                yield name, schedule.__name__


def _default(schedule: type[Schedule], problem: Problem) -> Schedule | None:
    try:
        return schedule.default(problem, TARGET)
    except ConfigError:
        return None


@cache
def _far(name: str, schedule: str) -> tuple[Schedule, tuple[Far, ...]]:
    config = _default(schedules()[schedule], _near(name)[1])
    assert config is not None
    small = ragged(config, _near(name)[1], TARGET) or _near(name)[1]
    return config, far_problems(config, small, TARGET)


CONFIGS = list(_configs())


@cache
def _compile_some(first: int) -> None:
    """Kernels of several operators, in one run of the compiler."""
    some = (_far(*names) for names in CONFIGS[first : first + 8])
    emulator.compile_together(config.source(normalised(far.problem)) for config, found in some for far in found)


@pytest.mark.parametrize(("name", "schedule"), CONFIGS)
def test_the_default_is_right_beyond_32_bits(name: str, schedule: str) -> None:
    _compile_some(CONFIGS.index((name, schedule)) // 8 * 8)
    config, found = _far(name, schedule)
    assert any(not far.rows for far in found), "nothing of it can be spread out"
    for far in found:
        assert check_far(config, far, _ONE_THREAD).ok, far


def test_every_schedule_that_can_has_many_rows() -> None:
    with_rows = {schedule for name, schedule in CONFIGS if any(far.rows for far in _far(name, schedule)[1])}
    assert with_rows >= {schedule for _, schedule in CONFIGS} - _NO_ROWS - {"RowwiseCluster"}


_WIDE = r"static_cast<(?:unsigned )?long long>\((?:[^()]|\([^()]*\))*\)"


def _strides(body: str) -> str:
    """Products of indices and strides in 32 bits."""
    return re.sub(rf"({_WIDE}|[\w.]+(?:\[\w+\])?) \* (\w+_s\w+)", r"static_cast<int>(\1) * static_cast<int>(\2)", body)


def _steps(body: str) -> str:
    """The same where a function of the body makes them."""
    body = body.replace("ptx::multiply_wide(index, stride)", "index * stride")
    return body.replace("static_cast<long long>(index) * stride", "static_cast<int>(index) * static_cast<int>(stride)")


def _positions(body: str) -> str:
    """Numbers of vectors and positions of elements in 32 bits."""
    narrow = body.replace("using Index = unsigned long long;", "using Index = unsigned;")
    return re.sub(r"(struct Place \{\n\s*)long long", r"\1int", narrow)


def _random(body: str) -> str:
    """The positions of random numbers in 32 bits."""
    return re.sub(r"const long long (\w+_first) = ", r"const unsigned \1 = ", body)


@pytest.mark.parametrize(
    ("name", "schedule", "rows", "narrowed"),
    [
        ("hgemm", "MmaGemm", True, _strides),
        ("hgemm", "MmaGemm", False, _strides),
        ("sgemm", "SimtGemm", False, _strides),
        ("gelu", "Elementwise", True, _positions),
        ("gelu", "Elementwise", False, _strides),
        ("dropout", "Elementwise", True, _random),
        ("transpose", "Transpose", False, _steps),
        ("softmax", "Rowwise", True, _strides),
        ("embedding", "Gather", False, _steps),
        ("index_add", "ScatterAdd", False, _strides),
        ("column_sum", "ColumnStats", False, _strides),
    ],
)
def test_a_kernel_that_counts_in_32_bits_is_refused(
    name: str, schedule: str, rows: bool, narrowed: Callable[[str], str]
) -> None:
    config, found = _far(name, schedule)
    far = next(far for far in found if bool(far.rows) == rows)
    source: Source = config.source(family_of(far.problem.graph).normalise(far.problem))
    body = narrowed(source.body)
    assert body != source.body
    assert not check_far(config, far, _ONE_THREAD, replace(source, body=body)).ok


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("gelu", "Elementwise"), ("transpose", "Transpose"), ("softmax", "Rowwise"), ("embedding", "Gather")],
)
def test_the_last_problem_that_is_counted_in_32_bits(name: str, schedule: str) -> None:
    """A step of rows more is another kernel's, or none's."""
    config, found = _far(name, schedule)

    def kept(far: Far, more: int) -> list[bool]:
        limits = config.source(normalised(far.near)).limits
        known = config.symbols(normalised(far.problem))
        return [
            limit.holds({n: value + more if value >= 2**26 else value for n, value in known.items()})
            for limit in limits
        ]

    assert any(all(kept(far, 0)) and not all(kept(far, 2**17)) for far in found if far.rows)


def test_far_elements_beside_an_operand_that_is_expanded() -> None:
    """As the gradient of a sum is: all its elements are one in memory."""
    graph = operators()["mul"].graphs[0]
    dense = Problem.dense(graph, {"...": (2, 40)})
    a, b, out = dense.operands
    problem = normalised(Problem.bind(graph, [a, replace(b, strides=(0, 0)), out]))
    config = _default(schedules()["Elementwise"], problem)
    assert config is not None
    found = far_problems(config, problem, TARGET)
    assert found
    for far in found:
        assert check_far(config, far, _ONE_THREAD).ok
