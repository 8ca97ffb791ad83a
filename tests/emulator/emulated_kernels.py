"""Kernels written by hand, as the generator would write them, to test the emulator with."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from kgen.codegen.source import Integer, Launch, Pointer, Scalar, Source
from kgen.dsl.target import sm
from kgen.dsl.types import DTYPES, DType, dtype
from kgen.emulator import Buffer

_INCLUDES = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h")
_SCALARS = {"int": "i32", "long long": "i64", "float": "f32", "double": "f64"}


def make(body: str, block: int | tuple[int, int, int] = 128, shared_bytes: int = 0, arch: int = 80) -> Source:
    """A Source of `body`, its entry and parameters read from the text; pointers to const are inputs."""
    found = re.search(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)", body)
    assert found is not None
    params: list[Pointer | Integer | Scalar] = []
    by_ctype: dict[str, DType] = {}
    for known in DTYPES.values():
        by_ctype.setdefault(known.ctype, known)
    for text in found.group(2).split(","):
        text = text.replace("__restrict__", "").strip()
        pointer = re.fullmatch(r"(const )?([\w ]+?)\s*\*\s*(\w+)", text)
        if pointer:
            element = by_ctype.get(pointer.group(2), dtype("i32"))
            access = "in" if pointer.group(1) else "out"
            params.append(Pointer(pointer.group(3), element, pointer.group(3), access))
            continue
        kind, name = text.rsplit(" ", 1)
        if kind in ("int", "long long"):
            params.append(Integer(name, 0, 64 if kind == "long long" else 32))
        else:
            params.append(Scalar(name, dtype(_SCALARS[kind])))
    shape = (block, 1, 1) if isinstance(block, int) else block
    launch = Launch((1, 1, 1), shape, shared_bytes)
    return Source("", _INCLUDES, "", body, found.group(1), tuple(params), launch, sm(arch))


def read(array: np.ndarray) -> Buffer:
    """An input."""
    return Buffer(array.ctypes.data, array.nbytes, writable=False)


def write(array: np.ndarray, initialized: bool = False) -> Buffer:
    """An output, whose content does not count unless `initialized`."""
    return Buffer(array.ctypes.data, array.nbytes, writable=True, initialized=initialized)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 256 bytes, as every allocation on a GPU is."""
    room = np.empty(array.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def integers(shape: Sequence[int], low: int = -3, high: int = 3, seed: int = 0) -> np.ndarray:
    """Small random integers as f32: products of them sum up without rounding."""
    return aligned(np.random.default_rng(seed).integers(low, high + 1, tuple(shape)).astype(np.float32))


MMA_HGEMM = """
constexpr int BM = 128, BN = 128, BK = 32, STAGES = 3;

// Chunk of 8 halves at `row`, `chunk` of a tile with rows of 4 chunks: two rows share 128 bytes, so the xor takes row / 2.
__device__ __forceinline__ int swizzled(int row, int chunk) { return (row * 4 + (chunk ^ (row / 2 % 4))) * 8; }

template <int Rows>
__device__ __forceinline__ void load_tile(__half* tile, const __half* __restrict__ source, int row0, int rows, int k0, int K) {
#pragma unroll
  for (int i = threadIdx.x; i < Rows * 4; i += 128) {
    int row = i / 4, chunk = i % 4, k = k0 + chunk * 8;
    bool inside = row0 + row < rows && k < K;
    const __half* from = inside ? source + (long long)(row0 + row) * K + k : source;
    ptx::cp_async<16>(ptx::smem_address(tile + swizzled(row, chunk)), from, inside ? 16 : 0);
  }
}

extern "C" __global__ void __launch_bounds__(128) hgemm(const __half* __restrict__ A, const __half* __restrict__ B,
                                                        float* __restrict__ C, int M, int N, int K) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __half* tiles = reinterpret_cast<__half*>(shared);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  int wm = warp / 2 * 64, wn = warp % 2 * 64;
  float acc[4][8][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 8; ++j)
      for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.0f;
  int steps = (K + BK - 1) / BK;
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
      __half* tile = tiles + s * (BM + BN) * BK;
      load_tile<BM>(tile, A, m0, M, s * BK, K);
      load_tile<BN>(tile + BM * BK, B, n0, N, s * BK, K);
    }
    ptx::cp_async_commit();
  }
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    int next = step + STAGES - 1;
    if (next < steps) {
      __half* tile = tiles + next % STAGES * (BM + BN) * BK;
      load_tile<BM>(tile, A, m0, M, next * BK, K);
      load_tile<BN>(tile + BM * BK, B, n0, N, next * BK, K);
    }
    ptx::cp_async_commit();
    const __half* a_tile = tiles + step % STAGES * (BM + BN) * BK;
    const __half* b_tile = a_tile + BM * BK;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      unsigned a[4][4], b[8][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int row = wm + i * 16 + lane % 16, chunk = k / 8 + lane / 16;
        ptx::ldmatrix(a[i], ptx::smem_address(a_tile + swizzled(row, chunk)));
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        int row = wn + j * 8 + lane % 8, chunk = k / 8 + lane / 8 % 2;
        ptx::ldmatrix(b[j], ptx::smem_address(b_tile + swizzled(row, chunk)));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 8; ++j) ptx::mma_m16n8k16_f16_f32(acc[i][j], a[i], b[j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 8; ++j)
      for (int e = 0; e < 4; ++e) {
        int m = m0 + wm + i * 16 + lane / 4 + e / 2 * 8, n = n0 + wn + j * 8 + lane % 4 * 2 + e % 2;
        if (m < M && n < N) C[(long long)m * N + n] = acc[i][j][e];
      }
}
"""
MMA_HGEMM_SHARED = 3 * (128 + 128) * 32 * 2
