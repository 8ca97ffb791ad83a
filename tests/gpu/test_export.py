"""Exported operators on a real GPU: nvcc builds them, their own tests pass. No torch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from export_samples import EXPORTED, Exported, problem, shifted, tma_shift

from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.export import export
from kgen.gpu import driver
from kgen.gpu.target import Target, detect

NVCC = shutil.which("nvcc")
pytestmark = [
    pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU"),
    pytest.mark.skipif(NVCC is None, reason="needs nvcc"),
]


@pytest.mark.parametrize("case", EXPORTED, ids=str)
def test_exported_operator(case: Exported, tmp_path: Path) -> None:
    target = detect(0)
    assert target is not None
    passes(*case.made(target), target, tmp_path)


@pytest.mark.parametrize("cooperative", [False, True])
def test_exported_tensor_maps(cooperative: bool, tmp_path: Path) -> None:
    target = detect(0)
    assert target is not None
    if target.arch.sm != 90:
        pytest.skip("needs a GPU of sm_90")
    of = problem(shifted, {}, {"M": 64, "N": 128})
    passes(of, tma_shift(cooperative=cooperative, cluster=2, scratch=True), target, tmp_path)


def passes(of: Problem, config: Schedule, target: Target, tmp_path: Path) -> None:
    """Exports, builds with nvcc alone, and runs the test that came with it."""
    name = of.graph.name
    export(of, config, target, tmp_path)
    arch = str(target.arch).removeprefix("sm_")
    command = [str(NVCC), "-std=c++17", "-O2", "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-o", "test"]
    subprocess.run([*command, f"{name}.cu", f"test_{name}.cu"], cwd=tmp_path, check=True, timeout=300)
    done = subprocess.run([str(tmp_path / "test")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": ok" in done.stdout
