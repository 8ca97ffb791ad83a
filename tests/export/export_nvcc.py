"""nvcc for the tests: where it is, how strictly it compiles, and several exports as one translation unit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from export_host import includes

from kgen.export.extension import TORCH


def _nvcc() -> str | None:
    """The machine's own, else that of a Python package."""
    packaged = (path for entry in sys.path for path in Path(entry or ".").glob("nvidia/*/bin/nvcc"))
    return shutil.which("nvcc") or next(map(str, packaged), None)


NVCC = _nvcc()
#: In continuous integration a test that needs nvcc fails without it.
needs_nvcc = pytest.mark.skipif(NVCC is None and not os.environ.get("CI"), reason="nvcc is not installed")
_STRICT = ("-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror")


def compiled(folder: Path, arch: str, arguments: Sequence[str]) -> None:
    """Runs nvcc with every warning an error; `arch` as in sm_90a."""
    assert NVCC is not None, "nvcc is not installed; expected a CUDA toolkit, or pip install nvidia-cuda-nvcc"
    number = arch.removeprefix("sm_")
    command = [NVCC, *_STRICT, "-gencode", f"arch=compute_{number},code=sm_{number}", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


def _sources(exported: Mapping[str, str]) -> list[str]:
    """What nvcc builds the test of an export from."""
    return [name for name in exported if name.endswith((".cu", ".cpp")) and not name.endswith("_torch.cpp")]


def built_and_run(exported: Mapping[str, str], arch: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Exit code and output of an export's test, built as the line at its top says."""
    for name, text in exported.items():
        (folder / name).write_text(text)
    compiled(folder, arch, ["-O2", "-o", "test", *_sources(exported)])
    done = subprocess.run(
        [str(folder / "test")], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def _is_launch(name: str, files: Sequence[str]) -> bool:
    """Whether a kernel file is that of a launch of an operator that takes several: OP_1.cu beside OP.cu."""
    return f"{name.removesuffix('.cu').rpartition('_')[0]}.cu" in files


def read_by_both_passes(exports: Sequence[Mapping[str, str]], arch: str, folder: Path) -> None:
    """nvcc's front ends for device and host take kernel, header and test of all exports: in one unit, a namespace each.

    Two exports in a unit must be of two operators. No code is made of them, and headers are read once for all: it takes a
    fifth of the time.
    """
    headers: dict[str, None] = {}
    lines = []
    for number, files in enumerate(exports):
        place = folder / f"export{number}"
        place.mkdir()
        for name, text in files.items():
            (place / name).write_text(text)
            if name.endswith((".cu", ".h")):
                headers |= dict.fromkeys(re.findall(r"^#include (<.*>)", text, re.MULTILINE))
        own = sorted((name for name in files if name.endswith(".cu")), key=lambda name: name.startswith("test_"))
        lines.append(f"namespace export{number} {{")
        # Of several launches: each is a unit of its own, before the one that calls them.
        launches = [name for name in own if _is_launch(name, own)]
        for name in launches:
            lines += [f"namespace {name.removesuffix('.cu')}_unit {{", f'#include "{place / name}"', "}"]
        lines += [f"using namespace {name.removesuffix('.cu')}_unit;" for name in launches]
        lines += ["namespace unit {", *(f'#include "{place / name}"' for name in own if name not in launches), "}", "}"]
    (folder / "unit.cu").write_text("\n".join([*(f"#include {header}" for header in headers), *lines, ""]))
    compiled(folder, arch, ["-fdevice-syntax-only", "-c", "-o", "unit.o", "unit.cu"])


def read_by_the_host(exports: Sequence[Mapping[str, str]], folder: Path) -> None:
    """A host compiler takes the extensions of torch of all exports: in one unit, a namespace each, with no warning."""
    lines = [f"#include <{name}.h>" for name in ("cuda_fp16", "cuda_bf16", "cuda_fp8")]
    headers: dict[str, None] = {}
    for number, files in enumerate(exports):
        (name,) = (name for name in files if name.endswith("_torch.cpp"))
        headers |= dict.fromkeys(re.findall(r"^#include (<.*>)", files[name], re.MULTILINE))
        op = name.removesuffix("_torch.cpp")
        text = files[name].replace(f'#include "{op}.h"', files[f"{op}.h"])
        lines += [f"namespace export{number} {{", text, "}"]
    place = Path(torch.__file__).parent
    (folder / "unit.cpp").write_text("\n".join([*(f"#include {header}" for header in headers), *lines, ""]))
    found = [word for path in (str(place / "include"), *includes()) for word in ("-isystem", path)]
    compiler = shutil.which("g++") or shutil.which("c++") or "c++"
    options = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-DTORCH_TARGET_VERSION={TORCH}"]
    done = subprocess.run(
        [compiler, *options, *found, "unit.cpp"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
