"""seen_by_rows and seeing_columns (templates/common/attention*.cuh): what the rows of a tile see, and what sees them."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used

_SEEN = """
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
    kernel = emulator.compile(make(functions_used("common", _SEEN) + _SEEN, 64))
    kernel.launch([read(begins), read(ends), write(found, True), first, last], (1, 1, 1))
    x, y = begins[first:last], ends[first:last]
    assert (found == [x.min(), y.max(), x.max(), y.min()]).all()


_SEEING = """
extern "C" __global__ void __launch_bounds__(96) kernel(const int* begins, const int* ends, int* found, int first,
                                                        int last, int count) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int2 seeing = seeing_columns(first, last, count, reinterpret_cast<int*>(shared),
                                     [&](int c) { return make_int2(begins[c], ends[c]); });
  found[threadIdx.x * 2] = seeing.x;
  found[threadIdx.x * 2 + 1] = seeing.y;
}
"""


@pytest.mark.parametrize("count", [1, 50, 96, 400])
@pytest.mark.parametrize(("first", "last"), [(0, 32), (64, 128), (960, 1000)])
def test_the_first_and_the_last_column_that_see_a_tile(first: int, last: int, count: int) -> None:
    """Of short ranges, a third of them empty; of none where no column sees any."""
    source = np.random.default_rng(count + first)
    begins = aligned(source.integers(0, 1000, count).astype(np.int32))
    ends = aligned((begins + source.integers(-15, 30, count)).astype(np.int32))
    found = aligned(np.zeros((96, 2), np.int32))
    kernel = emulator.compile(make(functions_used("common", _SEEING) + _SEEING, 96, 8))
    kernel.launch([read(begins), read(ends), write(found, True), first, last, count], (1, 1, 1))
    places = [c for c in range(count) if set(range(begins[c], ends[c])) & set(range(first, last))]
    assert (found == ([places[0], places[-1] + 1] if places else [count, 0])).all()
