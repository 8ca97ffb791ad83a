// One 16-bit float format, its pair type and their intrinsics; included once for each format (cuda_half.h defines the
// EMU_ names). No `#pragma once`: that is the point.

struct EMU_RAW {
  unsigned short x;
};
struct alignas(4) EMU_RAW2 {
  unsigned short x, y;
};

struct alignas(2) EMU_T {
  unsigned short bits;

  EMU_T() = default;
  constexpr EMU_T(EMU_RAW raw) : bits(raw.x) {}
  EMU_INLINE EMU_T(float v) : bits(EMU_ENCODE(v)) {}
  EMU_INLINE EMU_T(double v) : bits(EMU_ENCODE_DOUBLE(v)) {}
  // Exact in f64 up to 53 bits, so that only one rounding happens.
  template <class I, std::enable_if_t<std::is_integral_v<I>, int> = 0>
  EMU_INLINE EMU_T(I v) : bits(EMU_ENCODE_DOUBLE(double(v))) {}
  EMU_INLINE operator float() const { return EMU_DECODE(bits); }
  operator EMU_RAW() const { return {bits}; }

  EMU_INLINE EMU_T& operator+=(EMU_T b) { return *this = EMU_T(float(*this) + float(b)); }
  EMU_INLINE EMU_T& operator-=(EMU_T b) { return *this = EMU_T(float(*this) - float(b)); }
  EMU_INLINE EMU_T& operator*=(EMU_T b) { return *this = EMU_T(float(*this) * float(b)); }
  EMU_INLINE EMU_T& operator/=(EMU_T b) { return *this = EMU_T(float(*this) / float(b)); }
};

struct alignas(4) EMU_T2 {
  EMU_T x, y;

  EMU_T2() = default;
  EMU_INLINE EMU_T2(EMU_T a, EMU_T b) : x(a), y(b) {}
  EMU_T2(EMU_RAW2 raw) : x(EMU_RAW{raw.x}), y(EMU_RAW{raw.y}) {}
};

EMU_INLINE float EMU_NAME(__, 2float)(EMU_T v) { return float(v); }
EMU_INLINE EMU_T EMU_NAME(__float2, )(float v) { return EMU_T(v); }
EMU_INLINE EMU_T EMU_NAME(__float2, _rn)(float v) { return EMU_T(v); }
EMU_INLINE EMU_T EMU_NAME(__double2, )(double v) { return EMU_T(v); }
EMU_INLINE EMU_T EMU_NAME(__int2, _rn)(int v) { return EMU_T(v); }
EMU_INLINE EMU_T EMU_NAME(__uint2, _rn)(unsigned v) { return EMU_T(v); }
EMU_INLINE int EMU_NAME(__, 2int_rn)(EMU_T v) { return int(nearbyintf(float(v))); }
EMU_INLINE int EMU_NAME(__, 2int_rz)(EMU_T v) { return int(float(v)); }

EMU_INLINE float __low2float(EMU_T2 v) { return float(v.x); }
EMU_INLINE float __high2float(EMU_T2 v) { return float(v.y); }
EMU_INLINE EMU_T EMU_NAME(__low2, )(EMU_T2 v) { return v.x; }
EMU_INLINE EMU_T EMU_NAME(__high2, )(EMU_T2 v) { return v.y; }
EMU_INLINE EMU_T2 EMU_NAME(__low2, 2)(EMU_T2 v) { return {v.x, v.x}; }
EMU_INLINE EMU_T2 EMU_NAME(__high2, 2)(EMU_T2 v) { return {v.y, v.y}; }
EMU_INLINE EMU_T2 EMU_NAME(make_, 2)(EMU_T a, EMU_T b) { return {a, b}; }

#define EMU_BINARY(op, scalar, pair)                                                     \
  EMU_INLINE EMU_T operator op(EMU_T a, EMU_T b) { return EMU_T(float(a) op float(b)); } \
  EMU_INLINE EMU_T2 operator op(EMU_T2 a, EMU_T2 b) { return {a.x op b.x, a.y op b.y}; } \
  EMU_INLINE EMU_T scalar(EMU_T a, EMU_T b) { return a op b; }                           \
  EMU_INLINE EMU_T2 pair(EMU_T2 a, EMU_T2 b) { return a op b; }                          \
  EMU_INLINE EMU_T scalar##_rn(EMU_T a, EMU_T b) { return a op b; }                      \
  EMU_INLINE EMU_T2 pair##_rn(EMU_T2 a, EMU_T2 b) { return a op b; }
EMU_BINARY(+, __hadd, __hadd2)
EMU_BINARY(-, __hsub, __hsub2)
EMU_BINARY(*, __hmul, __hmul2)
#undef EMU_BINARY
EMU_INLINE EMU_T operator/(EMU_T a, EMU_T b) { return EMU_T(float(a) / float(b)); }
EMU_INLINE EMU_T2 operator/(EMU_T2 a, EMU_T2 b) { return {a.x / b.x, a.y / b.y}; }
EMU_INLINE EMU_T __hdiv(EMU_T a, EMU_T b) { return a / b; }
EMU_INLINE EMU_T2 __h2div(EMU_T2 a, EMU_T2 b) { return a / b; }
EMU_INLINE EMU_T operator-(EMU_T v) { return EMU_T(EMU_RAW{(unsigned short)(v.bits ^ 0x8000)}); }
EMU_INLINE EMU_T2 operator-(EMU_T2 v) { return {-v.x, -v.y}; }
EMU_INLINE EMU_T operator+(EMU_T v) { return v; }
EMU_INLINE EMU_T __hneg(EMU_T v) { return -v; }
EMU_INLINE EMU_T2 __hneg2(EMU_T2 v) { return -v; }
EMU_INLINE EMU_T __habs(EMU_T v) { return EMU_T(EMU_RAW{(unsigned short)(v.bits & 0x7fff)}); }
EMU_INLINE EMU_T2 __habs2(EMU_T2 v) { return {__habs(v.x), __habs(v.y)}; }
EMU_INLINE EMU_T2& operator+=(EMU_T2& a, EMU_T2 b) { return a = a + b; }
EMU_INLINE EMU_T2& operator-=(EMU_T2& a, EMU_T2 b) { return a = a - b; }
EMU_INLINE EMU_T2& operator*=(EMU_T2& a, EMU_T2 b) { return a = a * b; }
EMU_INLINE EMU_T2& operator/=(EMU_T2& a, EMU_T2 b) { return a = a / b; }

// A product of two 16-bit floats is exact in f64, and so nearly is the sum: one rounding.
EMU_INLINE EMU_T __hfma(EMU_T a, EMU_T b, EMU_T c) {
  return EMU_T(double(float(a)) * double(float(b)) + double(float(c)));
}
EMU_INLINE EMU_T2 __hfma2(EMU_T2 a, EMU_T2 b, EMU_T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
EMU_INLINE EMU_T __hfma_relu(EMU_T a, EMU_T b, EMU_T c) {
  EMU_T v = __hfma(a, b, c);
  return float(v) < 0.f ? EMU_T(0.f) : v;
}
// As on the GPU, max and min prefer a number to a NaN.
EMU_INLINE EMU_T __hmax(EMU_T a, EMU_T b) { return EMU_T(fmaxf(float(a), float(b))); }
EMU_INLINE EMU_T __hmin(EMU_T a, EMU_T b) { return EMU_T(fminf(float(a), float(b))); }
EMU_INLINE EMU_T2 __hmax2(EMU_T2 a, EMU_T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
EMU_INLINE EMU_T2 __hmin2(EMU_T2 a, EMU_T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }

#define EMU_COMPARE(op, intrinsic)                                               \
  EMU_INLINE bool operator op(EMU_T a, EMU_T b) { return float(a) op float(b); } \
  EMU_INLINE bool intrinsic(EMU_T a, EMU_T b) { return float(a) op float(b); }
EMU_COMPARE(==, __heq)
EMU_COMPARE(!=, __hne)
EMU_COMPARE(<, __hlt)
EMU_COMPARE(<=, __hle)
EMU_COMPARE(>, __hgt)
EMU_COMPARE(>=, __hge)
#undef EMU_COMPARE
EMU_INLINE bool __hisnan(EMU_T v) { return float(v) != float(v); }
EMU_INLINE int __hisinf(EMU_T v) { return isinf(float(v)) ? (float(v) < 0 ? -1 : 1) : 0; }

#define EMU_UNARY(name, pair, function)                                \
  EMU_INLINE EMU_T name(EMU_T v) { return EMU_T(function(float(v))); } \
  EMU_INLINE EMU_T2 pair(EMU_T2 v) { return {name(v.x), name(v.y)}; }
EMU_UNARY(hexp, h2exp, expf)
EMU_UNARY(hexp2, h2exp2, exp2f)
EMU_UNARY(hlog, h2log, logf)
EMU_UNARY(hlog2, h2log2, log2f)
EMU_UNARY(hsqrt, h2sqrt, sqrtf)
EMU_UNARY(hrsqrt, h2rsqrt, 1.f / sqrtf)
EMU_UNARY(hrcp, h2rcp, 1.f /)
EMU_UNARY(hsin, h2sin, sinf)
EMU_UNARY(hcos, h2cos, cosf)
EMU_UNARY(htanh, h2tanh, tanhf)
EMU_UNARY(hfloor, h2floor, floorf)
EMU_UNARY(hceil, h2ceil, ceilf)
EMU_UNARY(hrint, h2rint, nearbyintf)
EMU_UNARY(htrunc, h2trunc, truncf)
#undef EMU_UNARY

EMU_INLINE EMU_T atomicAdd(EMU_T* p, EMU_T v) { return emu::atomic<EMU_T>(EMU_ATOMIC_ADD, EMU_ATOMIC_TYPE, p, v); }
EMU_INLINE EMU_T2 atomicAdd(EMU_T2* p, EMU_T2 v) { return emu::atomic<EMU_T2>(EMU_ATOMIC_ADD, EMU_ATOMIC_TYPE2, p, v); }

#undef EMU_T
#undef EMU_T2
#undef EMU_RAW
#undef EMU_RAW2
#undef EMU_DECODE
#undef EMU_ENCODE
#undef EMU_ENCODE_DOUBLE
#undef EMU_NAME
#undef EMU_ATOMIC_TYPE
#undef EMU_ATOMIC_TYPE2
