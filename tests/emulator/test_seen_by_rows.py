"""seen_by_rows (templates/common/attention.cuh): every warp of a block finds the columns that the rows of a tile see."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used

_KERNEL = """
extern "C" __global__ void __launch_bounds__(64) kernel(const int* begins, const int* ends, int* found, int first, int last) {
  const SeenColumns seen = seen_by_rows(first, last, [&](int r) { return make_int2(begins[r], ends[r]); });
  const int told[] = {seen.first, seen.last, seen.first_by_all, seen.last_by_all};
  for (int i = 0; i < 4; ++i) found[threadIdx.x * 4 + i] = told[i];
}
"""


@pytest.mark.parametrize(("first", "last"), [(0, 1), (3, 20), (0, 32), (7, 71), (100, 228)])
def test_all_rows_of_a_tile_and_no_others(first: int, last: int) -> None:
    """The others see more, and less, than any row of the tile."""
    source = np.random.default_rng(last)
    begins, ends = (aligned(source.integers(-9, 5000, 228).astype(np.int32)) for _ in range(2))
    for outside in (slice(0, first), slice(last, None)):
        begins[outside] = source.choice([-100, 9000], begins[outside].shape)
        ends[outside] = source.choice([-100, 9000], ends[outside].shape)
    found = aligned(np.zeros((64, 4), np.int32))
    kernel = emulator.compile(make(functions_used("common", _KERNEL) + _KERNEL, 64))
    kernel.launch([read(begins), read(ends), write(found, True), first, last], (1, 1, 1))
    x, y = begins[first:last], ends[first:last]
    assert (found == [x.min(), y.max(), x.max(), y.min()]).all()
