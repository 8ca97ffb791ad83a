"""Exports of several problems and in every form on a real GPU: called from C++, from torch and from torch.compile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from export_nvcc import NVCC, built_and_run
from export_samples import bias_gelu, problem
from test_export_torch import loaded

from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.dsl.types import f16
from kgen.export import Entry, export_many
from kgen.gpu import driver
from kgen.gpu.target import detect
from kgen.runtime import dispatch

pytestmark = [
    pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU"),
    pytest.mark.skipif(NVCC is None, reason="needs nvcc"),
]
SHAPES = [
    (64, 64, 64), (1, 4096, 4096), (16, 4096, 4096), (512, 512, 512), (1024, 1024, 1024),
    (1000, 1000, 1000), (128, 128, 16384), (4096, 4096, 1024),
]  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Target:
    found = detect(0)
    assert found is not None
    return found


def entries(problems: list[Problem], target: Target) -> list[Entry]:
    """What the command exports for these problems by what is shipped."""
    choices = [dispatch.choose(of, target, None) for of in problems]
    return [Entry(of, c.config, c.origin) for of, c in zip(problems, choices)]


def products() -> list[Problem]:
    """hgemm as NN, TN and NT."""
    layouts: tuple[dict[str, str], ...] = ({}, {"a": "col"}, {"b": "col"})
    return [problem("hgemm", {"a": f16}, dict(zip("MNK", s)), layout) for layout in layouts for s in SHAPES]


def rows() -> list[Problem]:
    return [problem(bias_gelu, {"x": f16}, {"...": (m,), "N": n}) for m, n in ((8, 64), (4096, 4096), (64, 5001))]


def test_every_kernel_of_a_dispatcher_is_right(target: Target, tmp_path: Path) -> None:
    """Its own test has each of them run, at ragged sizes too, and the workspace used twice."""
    passes(products(), target, "cuda", tmp_path)


@pytest.mark.parametrize("form", ["cubin", "fatbin"])
@pytest.mark.parametrize("which", ["rows", "products"])
def test_binaries_are_loaded(which: str, form: Any, target: Target, tmp_path: Path) -> None:
    passes(rows() if which == "rows" else products()[3:7], target, form, tmp_path)


def passes(problems: list[Problem], target: Target, form: Any, folder: Path) -> None:
    written = export_many(entries(problems, target), target, folder, form=form)
    texts = {path.name: path.read_text() for path in written if path.suffix in (".cu", ".cpp", ".h")}
    code, told = built_and_run(texts, str(target.arch), folder)
    assert code == 0, told
    assert ": ok" in told


@pytest.fixture(scope="module")
def extension(target: Target, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """hgemm as an extension of torch, built by CMake."""
    if not (shutil.which("cmake") and shutil.which("ninja")):
        pytest.skip("CMake or Ninja is not installed")
    folder = tmp_path_factory.mktemp("extension")
    out, build = folder / "product", folder / "build"
    export_many(entries(products(), target), target, out, form="torch", namespace="exported")
    for arguments in (
        ["-S", str(out), "-B", str(build), "-G", "Ninja", f"-DPython3_EXECUTABLE={sys.executable}"],
        ["--build", str(build), "--target", "hgemm_torch"],
    ):
        done = subprocess.run(["cmake", *arguments], capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stdout + done.stderr
    return loaded(out)


def operands(m: int, n: int, k: int, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator("cuda").manual_seed(m + n + k)

    def matrix(rows: int, columns: int, transposed: bool) -> torch.Tensor:
        shape = (columns, rows) if transposed else (rows, columns)
        x = torch.randint(-2, 3, shape, generator=made, device="cuda").half() * 0.5
        return x.T if transposed else x

    return matrix(m, k, layout[0] == "T"), matrix(k, n, layout[1] == "T")


def right(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(found, (a.double() @ b.double()).half(), rtol=0, atol=0)  # sums of such values are exact


@pytest.mark.parametrize("layout", ["NN", "TN", "NT", "TT"])
def test_64_sizes_are_right(layout: str, extension: ModuleType) -> None:
    sizes = [(m, n, k) for m in (1, 7, 128, 1000) for n in (8, 129, 1024, 4096) for k in (16, 83, 512, 4096)]
    assert len(sizes) == 64
    for size in sizes:
        a, b = operands(*size, layout)
        if layout == "TT":  # in no problem of the export
            a = a.contiguous()
        right(extension.hgemm(a, b), a, b)


def test_rows_with_gaps_and_odd_addresses(extension: ModuleType) -> None:
    a, b = operands(200, 300, 400, "NN")
    for x, y in ((a[1:, 3:], b[3:, 5:]), (a[:, ::2], b[::2]), (a[:0], b), (a[:1], b[:, :1])):
        right(extension.hgemm(x, y), x, y)


def test_a_result_that_does_not_fit_in_memory_is_an_error(extension: ModuleType) -> None:
    one = torch.zeros(1, 1, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match="new_empty"):
        extension.hgemm(one.expand(1 << 26, 1), one.expand(1, 1 << 26))
    a, b = operands(64, 64, 64, "NN")
    right(extension.hgemm(a, b), a, b)


def test_torch_compiles_it(extension: ModuleType) -> None:
    op = extension.hgemm
    compiled = torch.compile(lambda a, b: torch.relu(op(a, b)) + 1, fullgraph=True)
    for size in ((64, 64, 64), (100, 72, 40)):
        a, b = operands(*size, "NN")
        torch.testing.assert_close(compiled(a, b), torch.relu((a.double() @ b.double()).half()) + 1, rtol=0, atol=0)
    torch.library.opcheck(op.default, operands(64, 64, 64, "TN"), test_utils=("test_schema", "test_faketensor"))


def test_it_runs_on_the_current_stream_and_in_graphs(extension: ModuleType) -> None:
    a, b = operands(128, 128, 16384, "NN")  # the sum is split: a workspace
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = extension.hgemm(a, b)
    side.synchronize()
    right(found, a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = extension.hgemm(a, b)
    for _ in range(3):
        found.zero_()
        graph.replay()
        right(found, a, b)


def test_a_streams_workspace_serves_sizes_in_turns_beside_a_graph_of_its_own(extension: ModuleType) -> None:
    several = [operands(m, 128, k, "NN") for m, k in ((128, 16384), (64, 16384), (128, 8192))]  # split sums
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [extension.hgemm(a, b) for a, b in several for _ in range(2)]
    for _ in range(3):
        for a, b in several:
            right(extension.hgemm(a, b), a, b)
        for found in captured:
            found.zero_()
        graph.replay()
        for i, found in enumerate(captured):
            right(found, *several[i // 2])
