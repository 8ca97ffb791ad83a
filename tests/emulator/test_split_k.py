"""Split-K's sums (templates/common/split_k.cuh): the last block of a tile has those of all, added in the order of the splits."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used

_KERNEL = """
extern "C" __global__ void __launch_bounds__({threads}) kernel(const float* x, float* partials, int* counters, float* out) {{
  constexpr int COUNT = ({elements} + {threads} - 1) / {threads};
  const int tile = blockIdx.x / {splits}, split = blockIdx.x % {splits};
  float sums[COUNT] = {{}};
  for (int i = 0; i < COUNT; ++i) {{
    const int at = i * {threads} + threadIdx.x;
    if (at < {elements}) sums[i] = x[blockIdx.x * {elements} + at];
  }}
  float* const of_tile = partials + tile * ({splits} * {elements});
  if (!split_k_fixup<{splits}, {elements}, {threads}>(sums, of_tile, counters + tile, split)) return;
  for (int i = 0; i < COUNT; ++i) {{
    const int at = i * {threads} + threadIdx.x;
    if (at < {elements}) out[tile * {elements} + at] = sums[i];
  }}
}}
"""


@pytest.mark.parametrize(("elements", "threads", "splits"), [(64, 32, 2), (50, 32, 5), (20, 64, 16), (96, 32, 1)])
def test_the_last_block_adds_all_in_order(elements: int, threads: int, splits: int) -> None:
    text = _KERNEL.format(elements=elements, threads=threads, splits=splits)
    kernel = emulator.compile(make(functions_used("common", text) + text, threads))
    tiles = 3
    x = aligned(np.random.default_rng(0).standard_normal((tiles, splits, elements)).astype(np.float32))
    partials, counters = aligned(np.full_like(x, np.nan)), aligned(np.zeros(tiles, np.int32))
    expected = np.zeros((tiles, elements), np.float32)
    for split in range(splits):
        expected += x[:, split]
    for _ in range(2):  # the counters are fit for the next launch
        out = aligned(np.full((tiles, elements), np.nan, np.float32))
        kernel.launch([read(x), write(partials), write(counters, True), write(out)], (tiles * splits, 1, 1))
        assert np.array_equal(out, expected)
        assert not counters.any()
