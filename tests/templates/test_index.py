"""Indices from numbers without a division (templates/common/index.cuh)."""

from __future__ import annotations

import numpy as np

from kgen import emulator
from kgen.codegen.library import functions_used, namespace_ptx
from kgen.codegen.source import Integer, Launch, Pointer, Source
from kgen.dsl.size import Dim, evaluate
from kgen.dsl.target import sm
from kgen.dsl.types import i32, i64
from kgen.emulator import Buffer

_DIVIDE = """extern "C" __global__ void divide(const long long* inverses, const int* numbers, int* quotients, int count) {
  for (int i = threadIdx.x; i < count; i += 32) quotients[i] = divided(numbers[i], inverses[i]);
}
"""


def test_quotients_are_exact() -> None:
    draw = np.random.default_rng(0)
    sizes = [*range(1, 70), *(2**k + d for k in range(7, 31) for d in (-1, 0, 1)), 2**31 - 1]
    pairs = []
    for size in sizes:
        most = (2**32 - 2) // size
        for quotient in {0, 1, most, int(draw.integers(0, most + 1))}:
            pairs += [(quotient * size + d, size) for d in (-1, 0, 1, size - 1)]
        pairs.append((2**32 - 2, size))
    pairs = [(n, size) for n, size in pairs if 0 <= n < 2**32 - 1]
    numbers = np.array([n for n, _ in pairs], np.uint32)
    value = Integer.inverse("inverse", Dim("n")).value
    inverses = np.array([evaluate(value, {"n": size}) for _, size in pairs], np.int64)
    found = np.zeros(len(pairs), np.uint32)
    params = (
        Pointer("inverses", i64, "inverses", "in"),
        Pointer("numbers", i32, "numbers", "in"),
        Pointer("quotients", i32, "quotients", "out"),
        Integer("count", Dim("count")),
    )
    functions = functions_used("common", _DIVIDE)
    text = namespace_ptx(functions) + functions + _DIVIDE
    source = Source("", (), "", text, "divide", params, Launch((1, 1, 1), (32, 1, 1)), sm(80))
    buffers = [Buffer(a.ctypes.data, a.nbytes, a is found, a is not found) for a in (inverses, numbers, found)]
    emulator.compile(source).launch([*buffers, len(pairs)], (1, 1, 1))
    assert found.tolist() == [n // size for n, size in pairs]
