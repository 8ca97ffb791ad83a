"""The PTX layer has two implementations of one list of functions, and the emulator accepts nothing that CUDA does not."""

from __future__ import annotations

import re
from pathlib import Path

import emulated_kernels as kernels
import pytest
import test_emulator_kernels as test_kernels

from kgen.codegen.source import Source
from kgen.emulator import build
from kgen.gpu.toolchain import toolchain

PTX = Path(build.__file__).parents[2] / "templates" / "ptx"
EMULATED = tuple((Path(build.__file__).parent / "cpp").glob("ptx*.h"))


def blocks() -> dict[str, str]:
    """The functions of the PTX layer: name and text."""
    found: dict[str, str] = {}
    for file in sorted(PTX.glob("*.cuh")):
        parts = re.split(r"^//: (\w+)\n", file.read_text(), flags=re.M)
        found.update(zip(parts[1::2], parts[2::2]))
    return found


def test_the_emulator_has_every_function_of_the_ptx_layer() -> None:
    emulated = "".join(text for file in EMULATED for text in file.read_text().split("namespace ptx {")[1:])
    names = set(re.findall(r"\b(\w+)\((?=[^()]*(?:\([^()]*\)[^()]*)*\) \{)", emulated)) - {"constexpr", "if"}
    missing = set(blocks()) - names - set(re.findall(r"struct (?:alignas\(\w+\) )?(\w+) \{", emulated))
    assert not missing, f"templates/ptx has {sorted(missing)}, kgen/emulator/cpp/ptx*.h have not"


HAND_WRITTEN = {
    "mma": kernels.make(kernels.MMA_HGEMM, shared_bytes=kernels.MMA_HGEMM_SHARED),
    "vector": kernels.make(test_kernels.VECTOR_ADD),
    "softmax": kernels.make(test_kernels.SOFTMAX),
    "sgemm": kernels.make(test_kernels.SGEMM),
    "split-k": kernels.make(test_kernels.SPLIT_K, 64),
    "atomics": kernels.make(test_kernels.ATOMICS, 96),
    "warp": kernels.make(test_kernels.WARP, 64),
    "stmatrix": kernels.make(test_kernels.STMATRIX, 32, 2048),
}


def nvrtc_log(source: Source, folder: Path) -> str | None:
    """What NVRTC has against a source with the PTX functions it uses; None if it compiles."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    used = {name: text for name, text in blocks().items() if f"ptx::{name}" in source.body}
    includes = "".join(f"#include <{name}>\n" for name in source.includes)
    text = includes + "namespace ptx {\n" + "".join(used.values()) + "}\n" + source.body
    folders = [folder for include in toolchain().includes for folder in (include, f"{include}/cccl")]
    options = [b"--gpu-architecture=sm_90", b"-std=c++17", *(f"-I{folder}".encode() for folder in folders)]
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, None, None)
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if result == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return None
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.decode()


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_nvrtc_accepts_what_the_emulator_runs(name: str, tmp_path: Path) -> None:
    assert nvrtc_log(HAND_WRITTEN[name], tmp_path) is None


def test_nvrtc_accepts_the_wmma_kernel(tmp_path: Path) -> None:
    body = test_kernels.WMMA.format(
        T="__half",
        E="__half",
        D="float",
        M=16,
        N=16,
        K=16,
        la="row_major",
        lb="col_major",
        lc="row_major",
        sa=1,
        sb=1,
        round="",
    )
    assert nvrtc_log(kernels.make(body, 32), tmp_path) is None
