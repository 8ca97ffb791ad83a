"""Correct kernels, as a generator would write them, give the right results: exactly, where the inputs are integers."""

# ruff: noqa: E501 (tables and CUDA)
from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from emulated_kernels import MMA_HGEMM, MMA_HGEMM_SHARED, aligned, integers, make, read, write

from kgen import emulator
from kgen.dsl.errors import ArgumentError
from kgen.emulator import Options

MODES = [Options(), Options(async_mode="eager", seed=1), Options(async_mode="random", seed=2), Options(checks=False)]
MODE_IDS = ["late", "eager", "random", "unchecked"]


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Bits of f32 values that bf16 holds exactly."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    assert not np.any(bits & 0xFFFF)
    return (bits >> 16).astype(np.uint16)


VECTOR_ADD = """
struct alignas(16) Vec { float v[4]; };
extern "C" __global__ void __launch_bounds__(128) add(const float* __restrict__ A, const float* __restrict__ B,
                                                      float* __restrict__ C, int n, float alpha) {
  int i = (blockIdx.x * 128 + threadIdx.x) * 4;
  if (i + 4 <= n) {
    Vec a = *reinterpret_cast<const Vec*>(A + i);
    float4 b = __ldg(reinterpret_cast<const float4*>(B + i));
    __stcs(reinterpret_cast<float4*>(C + i), make_float4(alpha * a.v[0] + b.x, alpha * a.v[1] + b.y, alpha * a.v[2] + b.z, alpha * a.v[3] + b.w));
  } else {
    for (int j = i; j < n; ++j) C[j] = alpha * A[j] + B[j];
  }
}
"""


@pytest.mark.parametrize("n", [1, 511, 512, 4003])
def test_vector_add_with_a_tail(n: int) -> None:
    a, b, c = integers([n]), integers([n], seed=1), np.full(n, np.nan, np.float32)
    report = emulator.compile(make(VECTOR_ADD)).launch([read(a), read(b), write(c), n, 2.0], ((n + 511) // 512, 1, 1))
    np.testing.assert_array_equal(c, 2 * a + b)
    assert report.global_load_bytes == 8 * n
    assert report.global_store_bytes == 4 * n


SOFTMAX = """
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}
extern "C" __global__ void __launch_bounds__(128) softmax(const __half* __restrict__ X, __half* __restrict__ Y, int rows, int n) {
  __shared__ float partial[2][4];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const __half* x = X + (long long)row * n;
    float top = -__int_as_float(0x7f800000);
    for (int i = threadIdx.x; i < n; i += blockDim.x) top = max(top, __half2float(x[i]));
    top = warp_max(top);
    if (lane == 0) partial[0][warp] = top;
    __syncthreads();
    top = warp_max(partial[0][lane % 4]);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __expf(__half2float(x[i]) - top);
    sum = warp_sum(sum);
    if (lane == 0) partial[1][warp] = sum;
    __syncthreads();
    sum = partial[1][0] + partial[1][1] + partial[1][2] + partial[1][3];
    for (int i = threadIdx.x; i < n; i += blockDim.x) Y[(long long)row * n + i] = __float2half_rn(__fdividef(__expf(__half2float(x[i]) - top), sum));
    __syncthreads();
  }
}
"""


@pytest.mark.parametrize("options", MODES, ids=MODE_IDS)
def test_softmax(options: Options) -> None:
    x = np.random.default_rng(0).standard_normal((7, 333)).astype(np.float16)
    y = np.full(x.shape, np.nan, np.float16)
    report = emulator.compile(make(SOFTMAX)).launch([read(x), write(y), 7, 333], (3, 1, 1), options=options)
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), rtol=1e-3)
    assert report.barriers == 3 * 7
    assert report.shuffles == 4 * 15 * 7


SGEMM = """
constexpr int BM = 64, BN = 64, BK = 8, TM = 4, TN = 8;
extern "C" __global__ void __launch_bounds__(128) sgemm(const float* __restrict__ A, const float* __restrict__ B,
                                                        float* __restrict__ C, int M, int N, int K) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto a_tile = reinterpret_cast<float(*)[BK][BM + 4]>(shared);
  auto b_tile = reinterpret_cast<float(*)[BK][BN]>(shared + 2 * sizeof(float[BK][BM + 4]));
  int t = threadIdx.x, m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, tm = t / 8 * TM, tn = t % 8 * TN;
  auto load = [&](int stage, int k0) {
    for (int i = t; i < BM * BK; i += 128) {
      int m = i / BK, k = i % BK;
      a_tile[stage][k][m] = m0 + m < M && k0 + k < K ? A[(m0 + m) * K + k0 + k] : 0.0f;
    }
    for (int i = t; i < BN * BK; i += 128) {
      int k = i / BN, n = i % BN;
      b_tile[stage][k][n] = n0 + n < N && k0 + k < K ? B[(k0 + k) * N + n0 + n] : 0.0f;
    }
  };
  float acc[TM][TN] = {};
  load(0, 0);
  __syncthreads();
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage ^= 1) {
    if (k0 + BK < K) load(stage ^ 1, k0 + BK);
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float b[TN];
      for (int j = 0; j < TN; j += 4) {
        float4 v = *reinterpret_cast<float4*>(&b_tile[stage][k][tn + j]);
        b[j] = v.x, b[j + 1] = v.y, b[j + 2] = v.z, b[j + 3] = v.w;
      }
      for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j) acc[i][j] = fmaf(a_tile[stage][k][tm + i], b[j], acc[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; ++j)
      if (m0 + tm + i < M && n0 + tn + j < N) C[(m0 + tm + i) * N + n0 + tn + j] = acc[i][j];
}
"""


@pytest.mark.parametrize("options", MODES, ids=MODE_IDS)
def test_sgemm_double_buffered(options: Options) -> None:
    m, n, k = 70, 100, 37
    a, b, c = integers([m, k]), integers([k, n], seed=1), np.full((m, n), np.nan, np.float32)
    source = make(SGEMM, shared_bytes=2 * 4 * (8 * 68 + 8 * 64))
    emulator.compile(source).launch([read(a), read(b), write(c), m, n, k], (2, 2, 1), options=options)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("options", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("shape", [(128, 128, 64), (200, 136, 72)])
def test_mma_hgemm(shape: tuple[int, int, int], options: Options) -> None:
    m, n, k = shape
    a, b = integers([m, k]).astype(np.float16), integers([n, k], seed=1).astype(np.float16)
    c = np.full((m, n), np.nan, np.float32)
    kernel = emulator.compile(make(MMA_HGEMM, shared_bytes=MMA_HGEMM_SHARED))
    grid = ((n + 127) // 128, (m + 127) // 128, 1)
    report = kernel.launch([read(a), read(b), write(c), m, n, k], grid, options=options)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    assert report.mma == grid[0] * grid[1] * 8 * 16 * ((k + 31) // 32 * 2)
    assert report.matrix_bank_conflicts == 0


def test_bank_conflicts_without_the_swizzle() -> None:
    plain = MMA_HGEMM.replace("chunk ^ (row / 2 % 4)", "chunk")
    assert plain != MMA_HGEMM
    a = integers([128, 64]).astype(np.float16)
    c = np.empty((128, 128), np.float32)
    kernel = emulator.compile(make(plain, shared_bytes=MMA_HGEMM_SHARED))
    report = kernel.launch([read(a), read(a), write(c), 128, 128, 64], (1, 1, 1))
    # Rows of 64 bytes: four of the eight rows of a matrix fall into the same banks.
    assert report.matrix_wavefronts == 4 * report.matrix_ideal_wavefronts


WMMA = """
using namespace nvcuda;
extern "C" __global__ void __launch_bounds__(32) product(const {T}* A, const {T}* B, {D}* C, int K, int lda, int ldb, int ldc) {{
  wmma::fragment<wmma::matrix_a, {M}, {N}, {K}, {E}, wmma::{la}> a;
  wmma::fragment<wmma::matrix_b, {M}, {N}, {K}, {E}, wmma::{lb}> b;
  wmma::fragment<wmma::accumulator, {M}, {N}, {K}, {D}> c;
  wmma::fill_fragment(c, {D}(0.0f));
  for (int k = 0; k < K; k += {K}) {{
    wmma::load_matrix_sync(a, A + k * {sa}, lda);
    wmma::load_matrix_sync(b, B + k * {sb}, ldb);
    {round}
    wmma::mma_sync(c, a, b, c);
  }}
  for (int i = 0; i < c.num_elements; ++i) c.x[i] = c.x[i] + {D}(1.0f);
  wmma::store_matrix_sync(C, c, ldc, wmma::mem_{lc});
}}
"""
ROUND = "for (int i = 0; i < a.num_elements; ++i) a.x[i] = wmma::__float_to_tf32(a.x[i]);\n" \
        "    for (int i = 0; i < b.num_elements; ++i) b.x[i] = wmma::__float_to_tf32(b.x[i]);"  # fmt: skip


WMMA_TYPES = [("__half", "float"), ("__half", "__half"), ("__nv_bfloat16", "float"), ("tf32", "float")]
WMMA_TYPES += [("signed char", "int")]
#: tf32 knows 16x16x8 only.
WMMA_CASES = [
    (shape, *types)
    for shape in ((16, 16), (32, 8), (8, 32))
    for types in WMMA_TYPES
    if types[0] != "tf32" or shape == (16, 16)
]


@pytest.mark.parametrize("layouts", ["rrr", "rcc", "crr", "ccc"])
@pytest.mark.parametrize(("shape", "element", "result"), WMMA_CASES)
def test_wmma(shape: tuple[int, int], element: str, result: str, layouts: str) -> None:
    m, n = shape
    step, k = (8, 32) if element == "tf32" else (16, 64)
    la, lb, lc = ({"r": "row_major", "c": "col_major"}[c] for c in layouts)
    a, b = integers([m, k]), integers([k, n], seed=1)
    body = WMMA.format(
        T="float" if element == "tf32" else element, E="wmma::precision::tf32" if element == "tf32" else element, D=result,
        M=m, N=n, K=step, la=la, lb=lb, lc=lc, sa=1 if la[0] == "r" else m, sb=n if lb[0] == "r" else 1,
        round=ROUND if element == "tf32" else "",
    )  # fmt: skip
    convert = {"__half": lambda x: x.astype(np.float16), "__nv_bfloat16": bfloat16, "tf32": lambda x: x.copy(),
               "signed char": lambda x: x.astype(np.int8)}[element]  # fmt: skip
    lay = lambda x, layout: aligned(convert(x if layout[0] == "r" else np.ascontiguousarray(x.T)))  # noqa: E731
    kind = {"__half": np.float16, "int": np.int32, "float": np.float32}[result]
    c = aligned(np.zeros((m, n) if lc[0] == "r" else (n, m), kind))
    sizes = [k, k if la[0] == "r" else m, n if lb[0] == "r" else k, n if lc[0] == "r" else m]
    am, bm = lay(a, la), lay(b, lb)
    emulator.compile(make(body, 32)).launch([read(am), read(bm), write(c), *sizes], (1, 1, 1))
    np.testing.assert_array_equal(c if lc[0] == "r" else c.T, (a @ b + 1).astype(c.dtype))


MMA = """
extern "C" __global__ void __launch_bounds__(32) product(const unsigned* A, const unsigned* B, {D}* C) {{
  constexpr int WORDS = {words};  // in a row of A or a column of B
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  unsigned a[{na}], b[{nb}];
  for (int j = 0; j < {na}; ++j) a[j] = A[(g + j % 2 * 8) * WORDS + t + j / 2 * 4];
  for (int j = 0; j < {nb}; ++j) b[j] = B[g * WORDS + t + j * 4];
  {D} d[{nd}];
  for (int j = 0; j < {nd}; ++j) d[j] = C[(g + j * 2 / {nd} * 8) * {ldc} + t * {step} + j % {step}];
  ptx::{name}(d, a, b);
  for (int j = 0; j < {nd}; ++j) C[(g + j * 2 / {nd} * 8) * {ldc} + t * {step} + j % {step}] = d[j];
}}
"""


def fp8(x: np.ndarray, kind: str) -> np.ndarray:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(x).to(getattr(torch, kind)).view(torch.uint8).numpy()


@pytest.mark.parametrize("options", [Options(), Options(checks=False)], ids=["checked", "unchecked"])
@pytest.mark.parametrize(
    ("name", "k", "encode"),
    [
        ("mma_m16n8k8_f16_f32", 8, lambda x: x.astype(np.float16)),
        ("mma_m16n8k8_f16_f16", 8, lambda x: x.astype(np.float16)),
        ("mma_m16n8k16_f16_f32", 16, lambda x: x.astype(np.float16)),
        ("mma_m16n8k16_f16_f16", 16, lambda x: x.astype(np.float16)),
        ("mma_m16n8k16_bf16_f32", 16, bfloat16),
        ("mma_m16n8k8_tf32_f32", 8, lambda x: x.astype(np.float32)),
        ("mma_m16n8k32_s8_s32", 32, lambda x: x.astype(np.int8)),
        ("mma_m16n8k32_e4m3_f32", 32, lambda x: fp8(x, "float8_e4m3fn")),
        ("mma_m16n8k32_e5m2_f32", 32, lambda x: fp8(x, "float8_e5m2")),
    ],
)
def test_mma(name: str, k: int, encode, options: Options) -> None:
    a, b, c = integers([16, k]), integers([8, k], seed=1), integers([16, 8], seed=2)
    if "s8" in name:
        a[:, 0], b[:, 0] = -128, -128
    ea, eb = encode(a), encode(b)
    words = ea.nbytes // 16 // 4
    packed = name.endswith("f16_f16")
    kind, ctype = (np.int32, "int") if "s32" in name else (np.float16, "unsigned") if packed else (np.float32, "float")
    body = MMA.format(
        D=ctype, words=words, na=words // 2, nb=words // 4, nd=2 if packed else 4, ldc=4 if packed else 8,
        step=1 if packed else 2, name=name,
    )  # fmt: skip
    d = c.astype(kind)
    emulator.compile(make(body, 32)).launch(
        [read(ea), read(eb), write(d, initialized=True)], (1, 1, 1), options=options
    )
    np.testing.assert_array_equal(d, (c + a @ b.T).astype(kind))


STMATRIX = """
extern "C" __global__ void __launch_bounds__(32) move(const unsigned short* X, unsigned short* Y) {
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned short* in = reinterpret_cast<unsigned short*>(shared);
  unsigned short* out = in + 512;
  unsigned lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) in[i / 8 * 8 + i % 8] = X[i];
  __syncwarp();
  unsigned r[4], s[4];
  ptx::ldmatrix_trans(r, ptx::smem_address(in + lane * 8));
  ptx::ldmatrix(s, ptx::smem_address(in + lane * 8));
  ptx::stmatrix(ptx::smem_address(out + lane * 8), r);
  ptx::stmatrix(ptx::smem_address(out + 256 + lane % 8 * 8), reinterpret_cast<unsigned(&)[1]>(s[3]));
  __syncwarp();
  for (int i = lane; i < 320; i += 32) Y[i] = out[i];
}
"""


def test_stmatrix_and_transposed_ldmatrix() -> None:
    x, y = np.arange(256, dtype=np.uint16), np.zeros(320, np.uint16)
    report = emulator.compile(make(STMATRIX, 32, 2048, arch=90)).launch([read(x), write(y)], (1, 1, 1))
    matrices = x.reshape(4, 8, 8)
    np.testing.assert_array_equal(y[:256].reshape(4, 8, 8), matrices.transpose(0, 2, 1))
    np.testing.assert_array_equal(y[256:].reshape(8, 8), matrices[3])
    assert (report.ldmatrix, report.stmatrix) == (2, 2)


SPLIT_K = """
extern "C" __global__ void __launch_bounds__(64) total(const float* X, float* partial, float* out, int* counter, int n) {
  __shared__ float sums[64];
  __shared__ int last;
  float sum = 0.0f;
  for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) sum += X[i];
  sums[threadIdx.x] = sum;
  for (int half = 32; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sums[0];
    __threadfence();
    last = atomicAdd(counter, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    float all = 0.0f;
    for (int b = 0; b < gridDim.x; ++b) all += __ldcg(partial + b);
    *out = all;
    *counter = 0;
  }
}
"""


@pytest.mark.parametrize("options", MODES, ids=MODE_IDS)
def test_last_block_sums_up(options: Options) -> None:
    x, partial, out, counter = integers([5000]), np.zeros(9, np.float32), np.zeros(1, np.float32), np.zeros(1, np.int32)
    kernel = emulator.compile(make(SPLIT_K, 64))
    kernel.launch(
        [read(x), write(partial), write(out), write(counter, initialized=True), 5000], (9, 1, 1), options=options
    )
    assert out[0] == x.sum()
    assert counter[0] == 0


ATOMICS = """
extern "C" __global__ void __launch_bounds__(96) count(int* i, unsigned* u, float* f, double* d, __half2* h, __nv_bfloat162* b) {
  __shared__ unsigned histogram[4];
  if (threadIdx.x < 4) histogram[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&histogram[threadIdx.x % 4], 1u);
  __syncthreads();
  if (threadIdx.x < 4) atomicAdd(&u[threadIdx.x], histogram[threadIdx.x]);
  atomicAdd(&i[0], -1);
  atomicMax(&i[1], (int)threadIdx.x);
  atomicMin(&i[2], -(int)threadIdx.x);
  atomicExch(&i[3], 7);
  atomicInc(&u[4], 10u);
  atomicOr(&u[5], 1u << (threadIdx.x % 32));
  atomicCAS(&u[6], 5u, 6u);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  atomicAdd(h, __floats2half2_rn(1.0f, 2.0f));
  atomicAdd(b, __floats2bfloat162_rn(1.0f, -1.0f));
}
"""


def test_atomics() -> None:
    i, u = np.zeros(4, np.int32), np.array([0, 0, 0, 0, 0, 0, 5], np.uint32)
    f, d, h, b = np.zeros(1, np.float32), np.zeros(1), np.zeros(2, np.float16), np.zeros(2, np.uint16)
    arrays = [write(x, initialized=True) for x in (i, u, f, d, h, b)]
    emulator.compile(make(ATOMICS, 96)).launch(arrays, (2, 1, 1))
    assert i.tolist() == [-192, 95, -95, 7]
    assert u.tolist() == [48, 48, 48, 48, 192 % 11, 2**32 - 1, 6]
    assert (f[0], d[0]) == (96.0, 48.0)
    assert h.tolist() == [192.0, 384.0]
    assert b.tolist() == bfloat16(np.array([192.0, -192.0])).tolist()


WARP = """
extern "C" __global__ void __launch_bounds__(64) warp(int* out, double* wide) {
  unsigned all = 0xffffffffu;
  int lane = threadIdx.x % 32, *o = out + threadIdx.x * 16;
  o[0] = __shfl_sync(all, lane, 5);
  o[1] = __shfl_up_sync(all, lane, 2u);
  o[2] = __shfl_down_sync(all, lane, 2u, 8);
  o[3] = __shfl_xor_sync(all, lane, 3);
  o[4] = (int)__ballot_sync(all, lane % 3 == 0);
  o[5] = __any_sync(all, lane == 31);
  o[6] = __all_sync(all, lane < 31);
  o[7] = __popc(__activemask());
  o[8] = (int)__float2half_rn(2.0f);
  o[9] = (int)(float)__shfl_sync(all, __floats2half2_rn((float)lane, 0.0f), 9).x;
  o[10] = (int)__half2float(__shfl_xor_sync(all, __float2half(lane), 1));
  o[11] = __syncthreads_count(lane < 3);
  o[12] = __syncthreads_or(threadIdx.x == 63);
  o[13] = __syncthreads_and(threadIdx.x < 63);
  o[14] = __reduce_add_sync(all, lane);
  o[15] = lane < 16 ? __shfl_sync(0x0000ffffu, lane, 3) : __shfl_sync(0xffff0000u, lane, 20);
  wide[threadIdx.x] = __shfl_down_sync(all, lane * 1.5, 1u);
}
"""


@pytest.mark.parametrize("seed", range(3))
def test_warp_operations(seed: int) -> None:
    out, wide = np.zeros((64, 16), np.int32), np.zeros(64)
    emulator.compile(make(WARP, 64)).launch([write(out), write(wide)], (1, 1, 1), options=Options(seed=seed))
    for t in range(64):
        lane = t % 32
        ballot = sum(1 << i for i in range(0, 32, 3))
        expected = [5, lane - 2 if lane >= 2 else lane, lane + 2 if lane % 8 < 6 else lane, lane ^ 3,
                    ballot, 1, 0, 32, 2, 9, lane ^ 1, 6, 1, 0, 496, 3 if lane < 16 else 20]  # fmt: skip
        assert (out[t].astype(np.int64) % 2**32).tolist() == expected
        assert wide[t] == 1.5 * min(lane + 1, 31) if lane < 31 else wide[t] == 1.5 * 31


def test_many_launches_are_fast_and_deterministic() -> None:
    kernel = emulator.compile(make(SOFTMAX))
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float16)
    results = set()
    for seed in range(20):
        y = np.zeros(x.shape, np.float16)
        kernel.launch([read(x), write(y), 4, 64], (4, 1, 1), options=Options(seed=seed, checks=bool(seed % 2)))
        results.add(y.tobytes())
    assert len(results) == 1


def test_launches_from_several_threads_at_once() -> None:
    kernel = emulator.compile(make(MMA_HGEMM, shared_bytes=MMA_HGEMM_SHARED))
    a, b = (aligned(integers([130, 64], seed=seed).astype(np.float16)) for seed in (0, 1))
    expected = a.astype(np.float32) @ b.astype(np.float32).T

    def launch(seed: int) -> bool:
        c = np.full(expected.shape, np.nan, np.float32)
        kernel.launch([read(a), read(b), write(c), 130, 130, 64], (2, 2, 1), options=Options(seed=seed, threads=2))
        return np.array_equal(c, expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(launch, range(12)))


@pytest.mark.parametrize("seed", range(3))
def test_a_warp_polls_a_flag(seed: int) -> None:
    body = """
extern "C" __global__ void __launch_bounds__(64) pass_on(const float* in, float* out, int n) {
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicExch(out, in[n]);
    __threadfence();
    *(volatile int*)&flag = 1;
  } else if (threadIdx.x == 32) {
    while (*(volatile int*)&flag == 0) { __nanosleep(100); }
    __threadfence();
    out[1] = atomicAdd(out, 0.0f);
  }
}
"""
    x, y = integers([8]), np.zeros(2, np.float32)
    emulator.compile(make(body, 64)).launch(
        [read(x), write(y, initialized=True), 3], (1, 1, 1), options=Options(seed=seed)
    )
    assert y.tolist() == [x[3], x[3]]


def test_clusters_of_blocks_cover_the_grid() -> None:
    body = """
extern "C" __global__ void __launch_bounds__(32) where(int* out) {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  __syncthreads();
  atomicAdd(&out[block], (int)threadIdx.x);
}
"""
    source = make(body, 32)
    source = dataclasses.replace(source, launch=dataclasses.replace(source.launch, cluster=(2, 1, 3)))
    out = np.zeros(4 * 3 * 6, np.int32)
    kernel = emulator.compile(source)
    kernel.launch([write(out, initialized=True)], (4, 3, 6))
    assert set(out) == {496}
    with pytest.raises(ArgumentError, match="whole clusters"):
        kernel.launch([write(out, initialized=True)], (3, 3, 6))
