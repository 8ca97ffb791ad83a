"""Every function of the PTX layer on a real GPU against a plain reference: the kernels that the emulator's tests run too."""

from __future__ import annotations

import re

import numpy as np
import ptx_copy_cases
import ptx_sync_cases
import ptx_warp_cases
import ptx_wgmma_cases
import pytest
from ptx_cases import Case

from kgen.codegen.library import blocks
from kgen.codegen.source import Pointer, TensorMap
from kgen.dsl.target import Target
from kgen.gpu.compile import compile
from kgen.gpu.kernel import load
from kgen.gpu.memory import DeviceBuffer
from kgen.gpu.target import detect

CASES: list[Case] = [
    *ptx_warp_cases.CASES, *ptx_copy_cases.CASES, *ptx_sync_cases.CASES, *ptx_wgmma_cases.CASES,
]  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Target:
    found = detect(0)
    if found is None:
        pytest.skip("needs a GPU")
    return found


def test_every_function_has_a_case() -> None:
    used = set(re.findall(r"\bptx::(\w+)", "".join(case.source.body for case in CASES)))
    assert not set(blocks("ptx")) - used


@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_the_gpu(case: Case, target: Target) -> None:
    if not case.source.arch.runs_on(target.arch):
        pytest.skip(f"needs {case.source.arch}, this is {target.arch}")
    run(case, target)


def run(case: Case, target: Target) -> None:
    """Launches a case on GPU 0 and compares what it left behind."""
    buffers: dict[str, DeviceBuffer] = {}
    try:
        for name, array in {**case.expected, **case.given}.items():
            buffers[name] = DeviceBuffer(array.nbytes)
            if name in case.given:
                buffers[name].write(np.ascontiguousarray(array).tobytes())
            else:
                buffers[name].fill(0x55)
        arguments: list[int | float] = []
        maps = {}
        for index, param in enumerate(case.source.params):
            if isinstance(param, (Pointer, TensorMap)):
                arguments.append(buffers[param.operand].address)
            else:
                arguments.append(case.numbers[param.name])
            if isinstance(param, TensorMap):
                maps[index] = case.extents[param.name]
        kernel = load(compile(case.source, target.arch), case.source, 0)
        kernel.launch(arguments, case.grid, maps=maps)
        for name, array in case.expected.items():
            case.compare(name, np.frombuffer(buffers[name].read(), array.dtype).reshape(array.shape))
        kernel.close()
    finally:
        for buffer in buffers.values():
            buffer.close()
