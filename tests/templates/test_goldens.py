"""The text of three configs a template, or more, to the letter, so that a change of a template shows as CUDA in the review.

After a change that is meant: pytest tests/templates/test_goldens.py --accept-goldens
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import TARGET
from goldens_table import GOLDENS
from launches import dense

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


@pytest.mark.parametrize("name", GOLDENS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.cu", rendered(name)[1].text)


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
