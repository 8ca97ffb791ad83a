"""Coalescing and bank conflicts are counted, line by line."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, integers, make, write
from emulated_kernels import read as given

from kgen import emulator
from kgen.dsl.errors import ArgumentError
from kgen.emulator import Options, Report

TRANSPOSE = """
extern "C" __global__ void __launch_bounds__(256) transpose(const float* X, float* Y, int n) {{
  __shared__ float tile[32][{width}];
  int x = blockIdx.x * 32, y = blockIdx.y * 32;
  for (int r = threadIdx.x / 32; r < 32; r += 8) tile[r][threadIdx.x % 32] = X[(y + r) * n + x + threadIdx.x % 32];
  __syncthreads();
  for (int r = threadIdx.x / 32; r < 32; r += 8) Y[(x + r) * n + y + threadIdx.x % 32] = tile[threadIdx.x % 32][r];
}}
"""


def run(body: str, n: int = 64) -> Report:
    x, y = integers([n, n]), aligned(np.zeros((n, n), np.float32))
    report = emulator.compile(make(body, 256)).launch(
        [given(x), write(y), n], (n // 32, n // 32, 1), options=Options(traffic=True)
    )
    np.testing.assert_array_equal(y, x.T)
    return report


def test_a_padded_transpose_has_no_conflicts() -> None:
    report = run(TRANSPOSE.format(width=33))
    assert report.transactions("global") == (2 * 64 * 64 * 4 // 32,) * 2
    assert report.transactions("shared") == (2 * 64 * 64 // 32,) * 2


def test_an_unpadded_transpose_has_conflicts_where_it_reads_columns() -> None:
    report = run(TRANSPOSE.format(width=32))
    worst = report.sites[0]
    assert (worst.line, worst.memory, worst.bytes) == (7, "shared", 4)
    assert worst.transactions == 32 * worst.ideal == 64 * 64


def test_a_naive_transpose_is_uncoalesced_where_it_stores() -> None:
    report = run("""
extern "C" __global__ void __launch_bounds__(256) transpose(const float* X, float* Y, int n) {
  int x = blockIdx.x * 32 + threadIdx.x % 32, y = blockIdx.y * 32 + threadIdx.x / 32;
  for (int r = 0; r < 32; r += 8)
    Y[x * n + y + r] = X[(y + r) * n + x];
}
""")
    assert report.transactions("global") == (64 * 64 + 64 * 64 * 4 // 32, 2 * 64 * 64 * 4 // 32)
    assert report.sites[0].line == 5


def test_a_broadcast_is_one_transaction() -> None:
    body = """
extern "C" __global__ void __launch_bounds__(64) total(const float* X, float* Y, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += X[i];
  Y[threadIdx.x] = sum;
}
"""
    x, y = integers([100]), aligned(np.zeros(64, np.float32))
    report = emulator.compile(make(body, 64)).launch(
        [given(x), write(y), 100], (1, 1, 1), options=Options(traffic=True)
    )
    assert set(y) == {x.sum()}
    assert {(site.line, site.transactions, site.ideal) for site in report.sites} == {(4, 200, 200), (5, 8, 8)}


def test_traffic_needs_checks() -> None:
    kernel = emulator.compile(make(TRANSPOSE.format(width=33), 256))
    x = integers([64, 64])
    with pytest.raises(ArgumentError, match=r"traffic needs checks=True"):
        kernel.launch([given(x), write(x), 64], (1, 1, 1), options=Options(checks=False, traffic=True))
