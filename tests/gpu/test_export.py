"""Exported operators on a real GPU: nvcc builds them, their own tests pass. No torch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import kgen.ops
from kgen.dsl.family import family_of
from kgen.dsl.problem import Problem
from kgen.dsl.types import DTYPES
from kgen.export import export
from kgen.gpu import driver
from kgen.gpu.target import detect

NVCC = shutil.which("nvcc")
pytestmark = [
    pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU"),
    pytest.mark.skipif(NVCC is None, reason="needs nvcc"),
]

CASES: list[tuple[str, str, dict[str, Any], dict[str, str], dict[str, Any]]] = [
    ("add", "f16", {"...": (1000, 1000)}, {}, {}),
    ("div", "f32", {"...": (4097,)}, {}, {}),
    ("gelu", "bf16", {"...": (33, 4096)}, {}, {"waves": 2}),
    ("bias_gelu", "f16", {"...": (33,), "N": 4096}, {}, {"waves": 4}),
    ("hgemm", "f16", {"M": 1024, "N": 1024, "K": 1024}, {}, {}),
    ("hgemm", "bf16", {"M": 512, "N": 768, "K": 640}, {"a": "col", "b": "col"}, {}),
    ("hgemm", "f16", {"M": 128, "N": 128, "K": 16384}, {}, {"splits": 8}),
    ("hgemm", "f16", {"M": 131, "N": 197, "K": 83}, {}, {}),
    ("sgemm", "f32", {"M": 512, "N": 512, "K": 512}, {}, {}),
    ("igemm", "i8", {"M": 512, "N": 512, "K": 512}, {}, {}),
    ("linear_gelu", "bf16", {"...": (4,), "M": 256, "N": 512, "K": 1024}, {}, {}),
]


@pytest.mark.parametrize(("name", "dtype", "sizes", "layouts", "changes"), CASES)
def test_exported_operator(
    name: str, dtype: str, sizes: dict[str, Any], layouts: dict[str, str], changes: dict[str, Any], tmp_path: Path
) -> None:
    target = detect(0)
    assert target is not None
    operator = kgen.ops.operator(name)
    first = next(iter(operator.tensors))
    problem = Problem.dense(operator.graph({first: DTYPES[dtype]}), sizes, layouts)
    family = family_of(problem.graph)
    normal = family.normalise(problem)
    schedule = next(s for s in family.schedules if s.applies(normal))
    config = schedule.default(normal, target).replace(**changes)
    export(problem, config, target, tmp_path)
    arch = str(target.arch).removeprefix("sm_")
    command = [str(NVCC), "-std=c++17", "-O2", "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-o", "test"]
    subprocess.run([*command, f"{name}.cu", f"test_{name}.cu"], cwd=tmp_path, check=True, timeout=300)
    done = subprocess.run([str(tmp_path / "test")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": ok" in done.stdout
