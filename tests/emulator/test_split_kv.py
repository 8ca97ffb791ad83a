"""Split-KV (templates/common/attention_splits.cuh): parts give together what all columns give, in every order of blocks."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used
from kgen.emulator import Options

_KERNEL = """
extern "C" __global__ void __launch_bounds__(32) kernel(const float* x, const float* stats,
    float* partials, int* counters, float* out, int rows) {{
  const int tile = blockIdx.x / {splits}, split = blockIdx.x % {splits}, lane = threadIdx.x;
  OnlineSoftmax<false> softmax(0.5f);
  float sums[{count}];
  for (int i = 0; i < {count}; ++i) sums[i] = x[(blockIdx.x * {count} + i) * 32 + lane];
  for (int r = 0; r < 2; ++r) {{
    const int at = (blockIdx.x * 16 + r * 8 + lane / 4) * 2;
    softmax.maximum[r] = stats[at];
    softmax.sum[r] = stats[at + 1];
  }}
  const bool present[2] = {{lane / 4 < rows, lane / 4 + 8 < rows}};
  float* const mine = partials + tile * ({splits} * split_kv_partial<32, {count}>);
  if (!split_kv_combine<{splits}, 32>(sums, softmax, present, mine, counters + tile, split)) return;
  for (int i = 0; i < {count}; ++i)
    if (present[i / 2 % 2]) out[(tile * {count} + i) * 32 + lane] = sums[i] / softmax.sum[i / 2 % 2];
}}
"""


@pytest.mark.parametrize(("splits", "count", "rows"), [(2, 8, 16), (5, 16, 4), (16, 4, 9), (3, 64, 16)])
def test_parts_give_what_all_columns_give(splits: int, count: int, rows: int) -> None:
    text = _KERNEL.format(splits=splits, count=count)
    kernel = emulator.compile(make(functions_used("common", text) + text, 32))
    tiles, source = 3, np.random.default_rng(0)
    sums = aligned(source.standard_normal((tiles, splits, count, 32)).astype(np.float32))
    stats = aligned(source.uniform(1, 3, (tiles, splits, 16, 2)).astype(np.float32))
    stats[0, 1, 2] = -np.inf, 0  # a part without columns, and a row without any
    stats[1, :, 3] = -np.inf, 0
    lane, i = np.arange(32), np.arange(count)[:, None]
    row = i // 2 % 2 * 8 + lane // 4
    sums[~np.isfinite(stats[..., 0])[..., row]] = 0
    maximum = stats[..., 0].max(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        shrink = np.exp2(0.5 * (stats[..., 0] - np.where(np.isfinite(maximum), maximum, 0)[:, None]).astype(np.float64))
        expected = (sums * shrink[..., row]).sum(1) / (stats[..., 1] * shrink).sum(1)[:, row]
    counters = aligned(np.zeros(tiles, np.int32))
    found = []
    for seed in range(4):  # the counters are fit for the next launch, and the order of blocks makes no difference
        partials = aligned(np.full(tiles * splits * 32 * (count + 4), np.nan, np.float32))
        out = aligned(np.full((tiles, count, 32), np.nan, np.float32))
        kernel.launch(
            [read(sums), read(stats), write(partials), write(counters, True), write(out), rows],
            (tiles * splits, 1, 1),
            options=Options(seed=seed),
        )
        present = np.broadcast_to(row < rows, out.shape)
        np.testing.assert_allclose(out[present], expected[present], rtol=1e-5, atol=1e-6)
        assert np.isnan(out[~present]).all()
        assert not counters.any()
        found.append(out.tobytes())
    assert len(set(found)) == 1


def test_parts_are_all_blocks_once() -> None:
    text = """
extern "C" __global__ void kernel(int* out, int first, int last) {
  const KeyBlocks part = split_kv_part<5>(KeyBlocks{first, last, first, last}, threadIdx.x);
  out[threadIdx.x * 2] = part.first;
  out[threadIdx.x * 2 + 1] = part.last;
}
"""
    kernel = emulator.compile(make(functions_used("common", text) + text, 5))
    for first, last in ((0, 5), (3, 20), (2, 4), (7, 7), (9, 4), (0, 11)):
        out = aligned(np.full(10, -1, np.int32))
        kernel.launch([write(out), first, last], (1, 1, 1))
        blocks = [b for begin, end in out.reshape(5, 2) for b in range(begin, end)]
        assert blocks == list(range(first, last))
        assert max(end - begin for begin, end in out.reshape(5, 2)) <= -(-max(last - first, 0) // 5)
