"""The shared device functions: only what is used, what it uses before it, and each one compiled on its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from kgen.codegen.library import blocks, functions_used, namespace_ptx
from kgen.codegen.source import Launch, Source
from kgen.dsl.target import sm
from kgen.gpu.compile import compile as nvrtc

TEMPLATES = Path(str(resources.files("kgen.templates")))
ROOT = Path(__file__).parents[2]
_KERNEL = 'extern "C" __global__ void nothing() {}\n'


def names_of(text: str, folder: str) -> list[str]:
    """The blocks that a text consists of, in its order."""
    places = {name: text.find(block) for name, block in blocks(folder).items()}  # type: ignore[arg-type]
    return sorted((name for name, place in places.items() if place >= 0), key=places.__getitem__)


def test_only_what_is_used_is_pulled() -> None:
    assert functions_used("common", "nothing of ours") == ""
    assert namespace_ptx("int main;") == ""
    assert names_of(functions_used("common", "raster<true, 1>(0, 1, 1)"), "common") == ["raster"]
    assert names_of(namespace_ptx("ptx::cp_async_commit(); mma_m16n8k16_f16_f32()"), "ptx") == ["cp_async_commit"]


def test_what_a_function_uses_comes_before_it() -> None:
    found = names_of(functions_used("common", "load_columns<4, 8>(p, 3)"), "common")
    assert found == ["Bits", "Vector", "LoadPlain", "load_vector", "load_strided", "load_columns"]


def test_names_are_whole_words_and_not_those_of_comments_and_strings() -> None:
    assert names_of(functions_used("common", "load_vector_fresh<4>(p)"), "common") == [
        "Bits",
        "Vector",
        "load_vector_fresh",
    ]
    assert names_of(namespace_ptx("ptx::ldmatrix_trans(r, a)"), "ptx") == ["ldmatrix_trans"]
    assert "namespace ptx {" in namespace_ptx("ptx::ldmatrix_trans(r, a)")


@pytest.mark.parametrize("folder", ["common", "ptx"])
def test_dependencies_are_closed_and_ordered(folder: str) -> None:
    known = blocks(folder)  # type: ignore[arg-type]
    assert len(known) > 8
    for name in known:
        found = names_of(functions_used(folder, name), folder)  # type: ignore[arg-type]
        assert found[-1] == name
        for index, inner in enumerate(found):
            code = re.sub(r'//.*|"[^"]*"', "", known[inner])
            uses = {other for other in known if other != inner and re.search(rf"\b{other}\b", code)}
            assert uses <= set(found[:index]), f"{inner} uses {uses - set(found[:index])}"


_BLOCKS = [(folder, name) for folder in ("common", "ptx") for name in blocks(folder)]


@pytest.mark.parametrize(("folder", "name"), _BLOCKS)
def test_blocks_compile_on_their_own(folder: str, name: str) -> None:
    body = functions_used("common", name) if folder == "common" else ""
    used = namespace_ptx(body if folder == "common" else f"ptx::{name}")
    source = Source("", ("cuda_fp16.h",), used, body + _KERNEL, "nothing", (), Launch((1, 1, 1), (1, 1, 1)), sm(90))
    assert nvrtc(source, sm(90)).warnings == ()


def test_blocks_say_what_they_do() -> None:
    for folder in ("common", "ptx"):
        for name, text in blocks(folder).items():  # type: ignore[arg-type]
            if not (name.startswith("cp_async_commit") or text.startswith("//")):
                pytest.fail(f"templates/{folder}: {name} has no comment")


def test_assembly_is_in_the_ptx_layer_alone() -> None:
    files = [file for file in TEMPLATES.rglob("*") if file.suffix in (".j2", ".cuh") and file.parent.name != "ptx"]
    assert len(files) > 5
    for file in files:
        assert not re.search(r"\basm\b", file.read_text(encoding="utf-8")), f"{file.name} has inline assembly"
    assert any("asm volatile" in file.read_text(encoding="utf-8") for file in (TEMPLATES / "ptx").glob("*.cuh"))


def test_shared_functions_have_no_jinja() -> None:
    for file in TEMPLATES.rglob("*.cuh"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"\{% |\{%-|^//%|\{\{ ", text, re.MULTILINE), file.name


@pytest.mark.skipif(not (ROOT / ".clang-format").is_file(), reason="the tree has no .clang-format")
def test_shared_functions_are_formatted() -> None:
    tool = shutil.which("clang-format")
    if tool is None:
        pytest.skip("clang-format is not installed")
    files = sorted(map(str, (*TEMPLATES.rglob("*.cuh"), *TEMPLATES.rglob("*.h"))))
    done = subprocess.run([tool, "--dry-run", "--Werror", *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_templates_leave_to_cpp_how_a_kernel_runs() -> None:
    templates = [*(ROOT / "templates").glob("*.j2"), *(ROOT / "templates/macros").glob("*.j2")]
    lines = {file.name: len(re.findall(r"^\s*//%", file.read_text(encoding="utf-8"), re.M)) for file in templates}
    assert {name: count for name, count in lines.items() if count > 60} == {}
