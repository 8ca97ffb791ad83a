"""Scans along a row (templates/common/scan.cuh), of a state whose order counts: what a linear recurrence is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used

_AFFINE = """
// x -> factor * x + sum, after what is before it.
struct Affine {
  double factor = 1;
  double sum = 0;
  __device__ __forceinline__ void combine(const Affine& later) {
    sum = later.factor * sum + later.sum;
    factor *= later.factor;
  }
};
"""

_ROWS = """
extern "C" __global__ void __launch_bounds__({threads}) rows(const double* factors, const double* terms, double* found, int n) {{
  extern __shared__ __align__(1024) unsigned char shared[];
  using Scan = RowScan<Affine, {row_threads}>;
  const int lane = threadIdx.x % Scan::LANES, warp = threadIdx.x % {row_threads} / Scan::LANES;
  const int start = threadIdx.x / {row_threads} * n;
  Scan scan;
  for (int tile = 0; tile < n; tile += {row_threads} * {vectors}) {{
    Affine states[{vectors}];
    int at[{vectors}];
    for (int v = 0; v < {vectors}; ++v) {{
      at[v] = tile + (warp * {vectors} + v) * Scan::LANES + lane;
      if (at[v] < n) states[v] = Affine{{factors[start + at[v]], terms[start + at[v]]}};
    }}
    scan.next(states, reinterpret_cast<Affine*>(shared));
    for (int v = 0; v < {vectors}; ++v)
      if (at[v] < n) found[start + at[v]] = factors[start + at[v]] * states[v].sum + terms[start + at[v]];
  }}
}}
"""


@pytest.mark.parametrize("vectors", [1, 3])
@pytest.mark.parametrize(("threads", "row_threads"), [(32, 1), (32, 4), (64, 32), (64, 64), (256, 256)])
@pytest.mark.parametrize("length", [1, 31, 1000])
def test_a_recurrence(length: int, threads: int, row_threads: int, vectors: int) -> None:
    rows = threads // row_threads
    draw = np.random.default_rng(length)
    factors, terms = (aligned(draw.choice((-1.0, 0.0, 1.0, 1.0), rows * length)) for _ in range(2))
    found = aligned(np.zeros(rows * length))
    text = _AFFINE + _ROWS.format(threads=threads, row_threads=row_threads, vectors=vectors)
    source = make(functions_used("common", text) + text, threads, 2 * 16 * threads // 32, 90)
    emulator.compile(source).launch([read(factors), read(terms), write(found), length], (1, 1, 1))
    expected = np.zeros((rows, length))
    last = np.zeros(rows)
    for column, (factor, term) in enumerate(zip(factors.reshape(rows, -1).T, terms.reshape(rows, -1).T)):
        last = factor * last + term
        expected[:, column] = last
    assert (found.reshape(rows, -1) == expected).all()


_TILES = """
extern "C" __global__ void __launch_bounds__(32) tiles(
    const double* factors, const double* terms, double* found, long long* left, int n) {
  const SharedRow<Affine> row(left, n);
  for (int tile = blockIdx.x; tile < n; tile += gridDim.x) {
    const Affine own{factors[tile], terms[tile]};
    row.leave(tile, own);
    const Affine before = row.before(tile, own);
    if (threadIdx.x == 0) found[tile] = factors[tile] * before.sum + terms[tile];
  }
}
"""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("length", [1, 32, 33, 1024, 1025, 2100])
def test_tiles_of_blocks(length: int, seed: int) -> None:
    """Of one element each, which is the last of groups and of sections of them."""
    draw = np.random.default_rng(length)
    factors, terms = (aligned(draw.choice((-1.0, 0.0, 1.0, 1.0), length)) for _ in range(2))
    found, groups = aligned(np.zeros(length)), -(-length // 32)
    left = aligned(np.zeros(4 * (length + groups + -(-groups // 32)), dtype=np.int64))
    text = _AFFINE + _TILES
    source = make(functions_used("common", text) + text, 32, 0, 90)
    source = replace(source, launch=replace(source.launch, cooperative=True))
    options = emulator.Options(threads=1, seed=seed)
    given = [read(factors), read(terms), write(found), write(left, initialized=True), length]
    emulator.compile(source).launch(given, (7, 1, 1), options=options)
    expected, last = [], 0.0
    for factor, term in zip(factors, terms):
        last = factor * last + term
        expected.append(last)
    assert (found == np.array(expected)).all()
