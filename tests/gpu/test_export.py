"""Exported operators on a real GPU: nvcc builds all of them, their own tests pass. No torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from export_nvcc import NVCC, built_and_run
from export_samples import EXPORTED, Exported, problem, shifted, tma_shift
from exports import exported, ragged
from operators import OPERATORS, small

from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.export.project import files
from kgen.gpu import driver
from kgen.gpu.target import detect

pytestmark = [
    pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU"),
    pytest.mark.skipif(NVCC is None, reason="needs nvcc"),
]
#: Of each operator: sizes that vectors divide, and ragged ones.
KINDS = ("small", "ragged")


@pytest.fixture(scope="module")
def target() -> Target:
    found = detect(0)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator(name: str, kind: str, target: Target, tmp_path: Path) -> None:
    of = small(OPERATORS[name].definition.graphs[0], 64)
    made = exported(ragged(of, target) if kind == "ragged" else of, target)
    passed(built_and_run(made, str(target.arch), tmp_path))


@pytest.mark.parametrize("case", EXPORTED, ids=str)
def test_exported_operator(case: Exported, target: Target, tmp_path: Path) -> None:
    passes(*case.made(target), target, tmp_path)


@pytest.mark.parametrize("cooperative", [False, True])
def test_exported_tensor_maps(cooperative: bool, target: Target, tmp_path: Path) -> None:
    if target.arch.sm != 90:
        pytest.skip("needs a GPU of sm_90")
    of = problem(shifted, {}, {"M": 64, "N": 128})
    passes(of, tma_shift(cooperative=cooperative, cluster=2, scratch=True), target, tmp_path)


def passes(of: Problem, config: Schedule, target: Target, tmp_path: Path) -> None:
    """Builds an export with nvcc alone, and runs the test that came with it."""
    passed(built_and_run(files(of, config, target, [target.arch]), str(target.arch), tmp_path))


def passed(result: tuple[int, str]) -> None:
    code, told = result
    assert code == 0, told
    assert ": ok" in told
