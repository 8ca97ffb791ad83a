"""FinishTogether (templates/common/attention_gradient.cuh): a head's parts are finished once, after all that its blocks added."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used

# A block adds to all parts of its head. `late`: the block of each head that asks whether all have started before it starts
# itself, so that it never waits; -1 for none.
_KERNEL = """
extern "C" __global__ void __launch_bounds__(64) kernel(const int* late, int* counters, float* sums, float* out, int* finished) {{
  __shared__ int flag;
  const int head = blockIdx.x % {heads}, block = blockIdx.x / {heads};
  const FinishTogether<1, 64> together(counters, head, {heads});
  const bool early = threadIdx.x == 0 && block == late[0] && together.all_started();
  if (threadIdx.x == 0) together.start();
  for (int part = 0; part < {parts}; ++part) atomicAdd(sums + (head * {parts} + part) * 64 + threadIdx.x, 1.0f);
  const bool waits = block == late[0] ? early : threadIdx.x == 0 && together.all_started();
  together.run(waits, {blocks}, {parts}, &flag, threadIdx.x, [&](int part) {{
    const int at = (head * {parts} + part) * 64 + threadIdx.x;
    out[at] = __ldcg(sums + at);
    __stcg(sums + at, 0.0f);
    if (threadIdx.x == 0) atomicAdd(finished + head * {parts} + part, 1);
  }});
}}
"""


@pytest.mark.parametrize(("heads", "blocks", "parts"), [(1, 1, 1), (1, 2, 5), (2, 2, 3), (3, 7, 4), (5, 1, 2)])
@pytest.mark.parametrize("late", [-1, 0, 1])
def test_every_part_is_finished_once(heads: int, blocks: int, parts: int, late: int) -> None:
    text = _KERNEL.format(heads=heads, blocks=blocks, parts=parts)
    kernel = emulator.compile(make(functions_used("common", text) + text, 64))
    counters = aligned(np.zeros(2 * heads + 2, np.int32))
    sums = aligned(np.zeros((heads, parts, 64), np.float32))
    for _ in range(3):  # counters and sums are fit for the next launch
        out = aligned(np.full((heads, parts, 64), np.nan, np.float32))
        finished = aligned(np.zeros((heads, parts), np.int32))
        given = [read(aligned(np.array([late], np.int32))), write(counters, True), write(sums, True), write(out)]
        kernel.launch([*given, write(finished, True)], (heads * blocks, 1, 1))
        assert (out == blocks).all()
        assert (finished == 1).all()
        assert not counters.any()
        assert not sums.any()
