"""Runs a Case of tests/ptx_cases.py on the emulator."""

from __future__ import annotations

import numpy as np
from emulated_kernels import aligned
from ptx_cases import Case

from kgen import emulator
from kgen.codegen.source import Pointer, TensorMap
from kgen.emulator import Buffer, Map, Options, Report


def run(case: Case, options: Options | None = None, blocks: range | None = None) -> Report:
    """Launches it and compares what it left behind."""
    arrays = {name: aligned(array) for name, array in case.given.items()}
    for name, array in case.expected.items():
        if name not in arrays:
            arrays[name] = aligned(np.full(array.shape, 0x55, np.uint8).astype(array.dtype))
    arguments: list[int | float | Buffer | Map] = []
    for param in case.source.params:
        if isinstance(param, (Pointer, TensorMap)):
            array = arrays[param.operand]
            buffer = Buffer(
                array.ctypes.data, array.nbytes, param.operand in case.expected, param.operand in case.given
            )
            if isinstance(param, TensorMap):
                extent = case.extents[param.name]
                arguments.append(Map(buffer, extent.sizes, extent.strides))
            else:
                arguments.append(buffer)
        else:
            arguments.append(case.numbers[param.name])
    kernel = emulator.compile(case.source, checks=options is None or options.checks)
    report = kernel.launch(arguments, case.grid, options=options, blocks=blocks)
    for name in case.expected:
        case.compare(name, arrays[name])
    return report
