"""Sources written by hand, for the tests of compilation and launch."""

from __future__ import annotations

from kgen.codegen.source import Integer, Launch, Pointer, Scalar, Source
from kgen.dsl.target import Arch
from kgen.dsl.types import f32

ADD = """\
extern "C" __global__ void __launch_bounds__(256) add(const float* x, const float* y, float* z, long long n,
                                                          float scale) {
  const long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i < n) z[i] = ptx::load_no_allocate(x + i) + scale * y[i];
}
"""

PTX = """\
namespace ptx {
__device__ __forceinline__ float load_no_allocate(const float* p) {
  float v;
  asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
}  // namespace ptx
"""

#: 96 live accumulators a thread where 64 registers are allowed.
SPILL = """\
extern "C" __global__ void __launch_bounds__(1024) spill(const float* x, float* z, int n) {
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) a[i] = 0.f;
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 96; ++i) a[i] += x[k * 96 + i] * x[threadIdx.x + k];
  }
#pragma unroll
  for (int i = 0; i < 96; ++i) z[i * 1024 + threadIdx.x] = a[i];
}
"""


def source(body: str, entry: str, params: tuple = (), ptx: str = "", arch: str = "sm_75", **launch) -> Source:
    shape = {"grid": (1, 1, 1), "block": (256, 1, 1), **launch}
    return Source("// a test", ("cuda_fp16.h",), ptx, body, entry, params, Launch(**shape), Arch.parse(arch))


def add() -> Source:
    params = (
        Pointer("x", f32, "x", "in"),
        Pointer("y", f32, "y", "in"),
        Pointer("z", f32, "z", "out"),
        Integer("n", 1, bits=64),
        Scalar("scale", f32),
    )
    return source(ADD, "add", params, PTX)
