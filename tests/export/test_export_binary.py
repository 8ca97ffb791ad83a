"""Kernels as binaries: the files, and that the loader builds with nvcc alone. A GPU runs them in tests/gpu."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from export_nvcc import NVCC, built_and_run, needs_nvcc
from export_samples import H200, bias_gelu, elementwise, problem

from kgen.dsl.errors import ArgumentError, ToolchainError
from kgen.dsl.problem import Problem
from kgen.dsl.target import sm
from kgen.dsl.types import f16
from kgen.export import Entry, export_many
from kgen.gpu import fatbin

FATBIN = fatbin.find_tool()
needs_fatbinary = pytest.mark.skipif(FATBIN is None and NVCC is None, reason="fatbinary is not installed")


def entries() -> list[Entry]:
    """Two problems, of which each has a kernel of its own."""
    found: list[Problem] = [problem(bias_gelu, {"x": f16}, {"...": (33,), "N": n}) for n in (512, 513)]
    return [Entry(found[0], elementwise(found[0], blocks_per_sm=4)), Entry(found[1], elementwise(found[1]))]


@needs_nvcc
@pytest.mark.parametrize("form", ["cubin", pytest.param("fatbin", marks=needs_fatbinary)])
def test_the_loader_builds_and_skips(form: str, tmp_path: Path) -> None:
    archs = [sm(90, "a")] if form == "cubin" else [sm(80), sm(90, "a")]
    written = export_many(entries(), H200, tmp_path, archs=archs, form=form)  # type: ignore[arg-type]
    names = {path.name for path in written}
    binaries = {f"bias_gelu_{i}.{form}" for i in (0, 1)}
    assert (
        names
        == {"bias_gelu.cpp", "bias_gelu.h", "bias_gelu_binary.h", "test_bias_gelu.cu", "CMakeLists.txt"} | binaries
    )
    arrays = re.findall(r"\{([\d,\s]+)\}", (tmp_path / "bias_gelu_binary.h").read_text())
    given = [bytes(int(n) for n in text.replace(",", " ").split()) for text in arrays]
    assert given == [(tmp_path / f"bias_gelu_{i}.{form}").read_bytes() for i in (0, 1)]
    magic = b"\x7fELF" if form == "cubin" else b"\x50\xed\x55\xba"
    assert all(binary.startswith(magic) for binary in given)
    assert all(binary.count(b"\x7fELF") == len(archs) for binary in given)
    texts = {name: (tmp_path / name).read_text() for name in names - binaries}
    assert "__global__" not in texts["bias_gelu.cpp"]
    assert not any("kgen" in text for text in texts.values())
    code, told = built_and_run(texts, "sm_90a", tmp_path, CUDA_VISIBLE_DEVICES="")
    assert code == 77, told


def test_a_cubin_is_for_one_architecture(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match="a cubin is for one architecture, got sm_80, sm_90a; expected one, or form fatbin"
    ):
        export_many(entries(), H200, tmp_path / "out", archs=[sm(80), sm(90, "a")], form="cubin")
    assert not (tmp_path / "out").exists()


def test_without_the_tool_there_is_no_fatbin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fatbin, "find_tool", lambda: None)
    with pytest.raises(ToolchainError, match=r"fatbinary was not found.*or export cubin"):
        export_many(entries(), H200, tmp_path / "out", form="fatbin")
    monkeypatch.setattr(fatbin, "find_tool", lambda: "/bin/false")
    with pytest.raises(ToolchainError, match="fatbinary failed"):
        export_many(entries(), H200, tmp_path / "out", form="fatbin")
