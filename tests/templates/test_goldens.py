"""The text of three configs a template, or more, to the letter, so that a change of a template shows as CUDA in the review.

It is laid out as `kgen source` prints it; what is compiled is not.

After a change that is meant: pytest tests/templates/test_goldens.py --accept-goldens
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import TARGET
from goldens_table import GOLDENS
from launches import dense

from kgen.codegen import layout
from kgen.codegen.source import joined
from kgen.dsl.family import schedules
from kgen.dsl.schedule import Schedule
from kgen.gpu.compile import compile as nvrtc
from kgen.ops import operator


def rendered(name: str) -> tuple[Schedule, Any]:
    """The config of a golden and its Source."""
    golden = GOLDENS[name]
    known = operator(golden.operator)
    graph = known.graph({next(iter(known.tensors)): golden.dtype})
    problem = dense(graph, golden.sizes, dict.fromkeys(golden.columns, "col"))
    schedule = schedules()[golden.schedule]
    config = schedule(**{**{n: field.values[0] for n, field in schedule.fields.items()}, **golden.fields})
    config.check(problem, TARGET)
    return config, config.source(problem)


@functools.cache
def shown(name: str) -> str:
    """The text of a golden, laid out: once for the tests that look at it."""
    return joined([rendered(name)[1]])


@pytest.fixture(autouse=True)
def needs_clang_format() -> None:
    if not layout._formatter():
        pytest.skip("clang-format is not installed")


@pytest.mark.parametrize("name", GOLDENS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.cu", shown(name))


@pytest.mark.parametrize("name", GOLDENS)
def test_layout_changes_no_token_and_keeps_to_120_columns(name: str) -> None:
    source = rendered(name)[1]
    text, header = shown(name), source.header.splitlines()

    def tokens(text: str) -> str:
        return re.sub(r"//[^\n]*|#line[^\n]*|\s+", "", text)

    assert tokens(text) == tokens(source.text)
    assert [line for line in text.splitlines() if len(line) > 120 and line not in header] == []
    assert text.splitlines()[: len(header)] == header


@pytest.mark.parametrize("name", GOLDENS)
def test_messages_name_lines_of_the_text(name: str) -> None:
    source = rendered(name)[1]
    for number, line in enumerate(shown(name).splitlines(), 1):
        if line.startswith("#line") and line.endswith(f'"{source.entry}.cu"'):
            assert line == f'#line {number + 1} "{source.entry}.cu"'


@pytest.mark.parametrize("name", GOLDENS)
def test_rendering_again_gives_the_same(name: str) -> None:
    first, second = rendered(name)[1], rendered(name)[1]
    assert first == second
    assert first.digest == second.digest


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens_compile_without_a_remark(name: str) -> None:
    source = rendered(name)[1]
    binary = nvrtc(source, TARGET.arch)
    assert binary.warnings == ()
    assert binary.spill_stores == 0
    assert 0 < binary.registers <= 255


def test_every_template_has_three_at_least() -> None:
    templates = [rendered(name)[0].template for name in GOLDENS]
    # Those of other tests' schedules are files elsewhere.
    known = {t for t in (schedule.template for schedule in schedules().values()) if not Path(t).is_absolute()}
    assert {t: min(templates.count(t), 3) for t in known} == dict.fromkeys(known, 3)
