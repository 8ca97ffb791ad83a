// Arithmetic that CUDA C++ has no spelling for, on some architecture.

//: max_nan
// The larger of two; NaN where either is.
__device__ __forceinline__ float max_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a > b || a != a ? a : b;
#endif
}

//: min_nan
// The smaller of two; NaN where either is.
__device__ __forceinline__ float min_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
#else
  return a < b || a != a ? a : b;
#endif
}

//: renew
// The same word, of which the compiler knows nothing any more: what it made of it before, it has to make again.
__device__ __forceinline__ void renew(unsigned& word) { asm("" : "+r"(word)); }

//: exp_approximate
// e to the x by one instruction of the special function unit: relative error about 2^-22 (1 + |x| / 4), 0 below 2^-126.
__device__ __forceinline__ float exp_approximate(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.4426950408889634f));
  return power;
}

//: exp2_approximate
// 2 to the x by one instruction of the special function unit: relative error about 2^-22, 0 below 2^-126.
__device__ __forceinline__ float exp2_approximate(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

//: sigmoid_approximate
// 1 / (1 + e to the -x) by two instructions of the special function unit: relative error about 2^-21 (1 + |x| / 4), 0
// where it is below 2^-126.
__device__ __forceinline__ float sigmoid_approximate(float x) {
  float power, share;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + power));
  return share;
}

//: reciprocal_approximate
// 1 / x by one instruction of the special function unit: relative error 2^-23, 0 where it is below 2^-126.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float share;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(x));
  return share;
}

//: multiply_wide
// The whole product of two ints.
__device__ __forceinline__ long long multiply_wide(int a, int b) {
  long long product;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}

//: reduce_min
// The smallest of a warp's ints: one instruction from sm_80 on.
__device__ __forceinline__ int reduce_min(int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_min_sync(0xffffffff, x);
#else
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = min(x, __shfl_xor_sync(0xffffffff, x, mask));
  return x;
#endif
}

//: reduce_max
// The largest of a warp's ints: one instruction from sm_80 on.
__device__ __forceinline__ int reduce_max(int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffff, x);
#else
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = max(x, __shfl_xor_sync(0xffffffff, x, mask));
  return x;
#endif
}
