// CUDA's mathematical functions and bit intrinsics that the C library lacks. The fast ones are as good as the exact
// ones here.
#pragma once

// glibc declares some of these names for itself.
#define __expf emu_fast_exp
#define __exp10f emu_fast_exp10
#define __exp2f emu_fast_exp2
#define __logf emu_fast_log
#define __log2f emu_fast_log2
#define __log10f emu_fast_log10
#define __sinf emu_fast_sin
#define __cosf emu_fast_cos
#define __tanf emu_fast_tan
#define __tanhf emu_fast_tanh
#define __powf emu_fast_pow
#define __sincosf emu_fast_sincos
EMU_INLINE float __expf(float x) { return expf(x); }
EMU_INLINE float __exp10f(float x) { return powf(10.f, x); }
EMU_INLINE float __exp2f(float x) { return exp2f(x); }
EMU_INLINE float __logf(float x) { return logf(x); }
EMU_INLINE float __log2f(float x) { return log2f(x); }
EMU_INLINE float __log10f(float x) { return log10f(x); }
EMU_INLINE float __sinf(float x) { return sinf(x); }
EMU_INLINE float __cosf(float x) { return cosf(x); }
EMU_INLINE float __tanf(float x) { return tanf(x); }
EMU_INLINE float __tanhf(float x) { return tanhf(x); }
EMU_INLINE float __powf(float x, float y) { return powf(x, y); }
EMU_INLINE void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
EMU_INLINE float __fdividef(float a, float b) { return a / b; }
EMU_INLINE float __fdiv_rn(float a, float b) { return a / b; }
EMU_INLINE float __frcp_rn(float x) { return 1.f / x; }
EMU_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
EMU_INLINE float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
EMU_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
EMU_INLINE float __fadd_rn(float a, float b) { return a + b; }
EMU_INLINE float __fsub_rn(float a, float b) { return a - b; }
EMU_INLINE float __fmul_rn(float a, float b) { return a * b; }
EMU_INLINE double __dadd_rn(double a, double b) { return a + b; }
EMU_INLINE double __dmul_rn(double a, double b) { return a * b; }
EMU_INLINE double __ddiv_rn(double a, double b) { return a / b; }
EMU_INLINE double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
EMU_INLINE float __saturatef(float x) { return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f; }
EMU_INLINE float rsqrtf(float x) { return 1.f / sqrtf(x); }
EMU_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
EMU_INLINE float rcbrtf(float x) { return 1.f / cbrtf(x); }
EMU_INLINE float normcdff(float x) { return float(0.5 * erfc(-double(x) * 0.70710678118654752440)); }
EMU_INLINE double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
inline double erfinv(double x) {
  if (!(x > -1.0 && x < 1.0)) return x == 1.0 || x == -1.0 ? x * __builtin_inf() : __builtin_nan("");
  double w = log1p(-x * x), t = 2 / (3.14159265358979323846 * 0.147) + w / 2;
  double y = copysign(sqrt(sqrt(t * t - w / 0.147) - t), x);  // good to 2e-3; each of Halley's steps triples the digits
  for (int i = 0; i < 3; ++i) {
    double u = (erf(y) - x) / (1.12837916709551257390 * exp(-y * y));
    y -= u / (1 + y * u);
  }
  return y;
}
EMU_INLINE float erfinvf(float x) { return float(erfinv(double(x))); }
EMU_INLINE double normcdfinv(double x) { return 1.41421356237309504880 * erfinv(2 * x - 1); }
EMU_INLINE float normcdfinvf(float x) { return float(normcdfinv(double(x))); }
EMU_INLINE float sinpif(float x) { return float(sin(3.14159265358979323846 * double(x))); }
EMU_INLINE float cospif(float x) { return float(cos(3.14159265358979323846 * double(x))); }

EMU_INLINE int __float_as_int(float x) { return emu::bit_cast<int>(x); }
EMU_INLINE unsigned __float_as_uint(float x) { return emu::bit_cast<unsigned>(x); }
EMU_INLINE float __int_as_float(int x) { return emu::bit_cast<float>(x); }
EMU_INLINE float __uint_as_float(unsigned x) { return emu::bit_cast<float>(x); }
EMU_INLINE long long __double_as_longlong(double x) { return emu::bit_cast<long long>(x); }
EMU_INLINE double __longlong_as_double(long long x) { return emu::bit_cast<double>(x); }

namespace emu {
// Conversions to integers saturate and take NaN to zero, as the GPU's do.
template <class I, class F>
EMU_INLINE I saturated(F rounded) {
  if (rounded != rounded) return 0;
  constexpr I kMin = std::is_signed_v<I> ? I(I(1) << (8 * sizeof(I) - 1)) : I(0), kMax = I(~kMin);
  if (rounded <= F(kMin)) return kMin;
  if (rounded >= F(kMax)) return kMax;
  return I(rounded);
}
}  // namespace emu
EMU_INLINE int __float2int_rn(float x) { return emu::saturated<int>(nearbyintf(x)); }
EMU_INLINE int __float2int_rz(float x) { return emu::saturated<int>(truncf(x)); }
EMU_INLINE int __float2int_rd(float x) { return emu::saturated<int>(floorf(x)); }
EMU_INLINE int __float2int_ru(float x) { return emu::saturated<int>(ceilf(x)); }
EMU_INLINE unsigned __float2uint_rn(float x) { return emu::saturated<unsigned>(nearbyintf(x)); }
EMU_INLINE unsigned __float2uint_rz(float x) { return emu::saturated<unsigned>(truncf(x)); }
EMU_INLINE long long __float2ll_rn(float x) { return emu::saturated<long long>(nearbyintf(x)); }
EMU_INLINE long long __float2ll_rz(float x) { return emu::saturated<long long>(truncf(x)); }
EMU_INLINE int __double2int_rn(double x) { return emu::saturated<int>(nearbyint(x)); }
EMU_INLINE int __double2int_rz(double x) { return emu::saturated<int>(trunc(x)); }
EMU_INLINE long long __double2ll_rz(double x) { return emu::saturated<long long>(trunc(x)); }
EMU_INLINE float __int2float_rn(int x) { return float(x); }
EMU_INLINE float __uint2float_rn(unsigned x) { return float(x); }
EMU_INLINE float __ll2float_rn(long long x) { return float(x); }
EMU_INLINE float __double2float_rn(double x) { return float(x); }

EMU_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
EMU_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMU_INLINE int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
EMU_INLINE int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
EMU_INLINE int __ffs(int x) { return __builtin_ffs(x); }
EMU_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
EMU_INLINE unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
EMU_INLINE unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
EMU_INLINE int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
EMU_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
EMU_INLINE int __mul24(int a, int b) { return int(unsigned(a << 8 >> 8) * unsigned(b << 8 >> 8)); }
EMU_INLINE unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t bytes = uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned pick = selector >> (4 * i) & 15, byte = unsigned(bytes >> (8 * (pick & 7))) & 0xff;
    result |= (pick & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << (8 * i);
  }
  return result;
}
EMU_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
EMU_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
EMU_INLINE int __dp4a(int a, int b, int c) {
  unsigned sum = unsigned(c);
  for (int i = 0; i < 4; ++i)
    sum += unsigned(int(int8_t(unsigned(a) >> (8 * i))) * int(int8_t(unsigned(b) >> (8 * i))));
  return int(sum);
}

// min and max of CUDA: mixed arguments are converted as usual, floats prefer a number to a NaN.
template <class A, class B, std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, int> = 0>
EMU_INLINE std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B, std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, int> = 0>
EMU_INLINE std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
  return T(a) < T(b) ? T(b) : T(a);
}
// In the C library the arithmetic overloads of these live in std alone, or not at all.
using std::abs;
using std::ceil;
using std::exp;
using std::floor;
using std::fma;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::log;
using std::pow;
using std::sqrt;
using std::tanh;
