"""The rings between producers and consumers (templates/common/pipeline.cuh), with the emulator's checks of races."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used
from kgen.dsl.errors import EmulatorError

_RING = """
constexpr int STAGES = {stages}, CONSUMERS = 2;
extern "C" __global__ void __launch_bounds__(384) ring(const int* values, int* sums, int count) {{
  extern __shared__ __align__(1024) unsigned char shared[];
  int* const tiles = reinterpret_cast<int*>(shared);
  const TmaPipeline<STAGES> pipeline(ptx::smem_address(shared) + STAGES * 128 * 4);
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {{
    pipeline.init(128, {releases});
    ptx::mbarrier_init_fence();
  }}
  __syncthreads();
  PipelineState<STAGES> state;
  if (warpgroup == 0) {{
    for (int i = 0; i < count; ++i) {{
      pipeline.acquire(state);
      tiles[state.stage * 128 + thread] = values[i * 128 + thread];
      pipeline.expect(state, 0);
      state.advance();
    }}
  }} else {{
    int sum = 0;
    for (int i = 0; i < count; ++i) {{
      pipeline.wait(state);
      sum += (i + 1) * tiles[state.stage * 128 + (thread + 1) % 128];
      warpgroup_sync<CONSUMERS>(warpgroup - 1);
      pipeline.release(state.stage, thread);
      state.advance();
    }}
    sums[(warpgroup - 1) * 128 + thread] = sum;
  }}
}}
"""

_STATE = """
extern "C" __global__ void state(int* found) {{
  PipelineState<{stages}> one, many;
  for (int steps = 0; steps < 4 * {stages}; ++steps) {{
    for (int i = 0; i < steps; ++i) one.advance();
    many.advance(steps);
    found[steps] = one.stage == many.stage && one.phase == many.phase;
  }}
}}
"""


def launched(text: str, buffers, threads: int, shared: int = 0) -> None:
    functions = functions_used("common", text)
    source = make(functions + text, threads, shared, 90)
    emulator.compile(source).launch(buffers, (1, 1, 1))


def ring(stages: int, count: int, releases: str = "CONSUMERS") -> tuple[np.ndarray, np.ndarray]:
    values = aligned(np.random.default_rng(0).integers(0, 100, (count, 128)).astype(np.int32))
    sums = aligned(np.zeros((2, 128), np.int32))
    text = _RING.format(stages=stages, releases=releases)
    launched(text, [read(values), write(sums), count], 384, stages * (128 * 4 + 16))
    expected = np.roll(values, -1, 1) * np.arange(1, count + 1)[:, None]
    return sums, np.tile(expected.sum(0), (2, 1))


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 4, 23])
def test_every_tile_reaches_every_consumer(stages: int, count: int) -> None:
    found, expected = ring(stages, count)
    np.testing.assert_array_equal(found, expected)


def test_a_stage_that_one_consumer_still_reads_is_not_overwritten_unseen() -> None:
    with pytest.raises(EmulatorError, match="race on shared memory"):
        ring(2, 23, releases="1")


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_many_steps_are_as_many_single_ones(stages: int) -> None:
    found = aligned(np.zeros(4 * stages, np.int32))
    launched(_STATE.format(stages=stages), [write(found)], 1)
    assert found.all()
