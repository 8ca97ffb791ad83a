// cuda_fp8.h: e4m3 and e5m2. Constructors saturate to the largest finite value and round to nearest even.
#pragma once

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

EMU_INLINE __nv_fp8_storage_t __nv_cvt_double_to_fp8(double v, __nv_saturation_t saturate,
                                                     __nv_fp8_interpretation_t kind) {
  return kind == __NV_E4M3 ? emu::double_to_fp8<4, 3>(v, saturate == __NV_SATFINITE)
                           : emu::double_to_fp8<5, 2>(v, saturate == __NV_SATFINITE);
}
EMU_INLINE __nv_fp8_storage_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t saturate,
                                                    __nv_fp8_interpretation_t kind) {
  return __nv_cvt_double_to_fp8(double(v), saturate, kind);
}
EMU_INLINE __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturate,
                                                         __nv_fp8_interpretation_t kind) {
  return __nv_fp8x2_storage_t(__nv_cvt_float_to_fp8(v.x, saturate, kind) | __nv_cvt_float_to_fp8(v.y, saturate, kind)
                                                                               << 8);
}
EMU_INLINE __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t kind) {
  return __half(kind == __NV_E4M3 ? emu::fp8_to_float<4, 3>(v) : emu::fp8_to_float<5, 2>(v));
}

#define EMU_FP8(T, T2, T4, E, M)                                                                  \
  struct T {                                                                                      \
    __nv_fp8_storage_t __x;                                                                       \
    T() = default;                                                                                \
    EMU_INLINE explicit T(double v) : __x(emu::double_to_fp8<E, M>(v, true)) {}                   \
    EMU_INLINE explicit T(float v) : T(double(v)) {}                                              \
    EMU_INLINE explicit T(__half v) : T(double(float(v))) {}                                      \
    EMU_INLINE explicit T(__nv_bfloat16 v) : T(double(float(v))) {}                               \
    template <class I, std::enable_if_t<std::is_integral_v<I>, int> = 0>                          \
    EMU_INLINE explicit T(I v) : T(double(v)) {}                                                  \
    EMU_INLINE explicit operator float() const { return emu::fp8_to_float<E, M>(__x); }           \
    EMU_INLINE explicit operator double() const { return float(*this); }                          \
    EMU_INLINE explicit operator __half() const { return __half(float(*this)); }                  \
    EMU_INLINE explicit operator __nv_bfloat16() const { return __nv_bfloat16(float(*this)); }    \
    EMU_INLINE explicit operator int() const { return int(float(*this)); }                        \
    EMU_INLINE explicit operator bool() const { return (__x & 0x7f) != 0; }                       \
  };                                                                                              \
  struct alignas(2) T2 {                                                                          \
    __nv_fp8x2_storage_t __x;                                                                     \
    T2() = default;                                                                               \
    EMU_INLINE explicit T2(float2 v) : __x(__nv_fp8x2_storage_t(T(v.x).__x | T(v.y).__x << 8)) {} \
    EMU_INLINE explicit T2(__half2 v) : T2(__half22float2(v)) {}                                  \
    EMU_INLINE explicit T2(__nv_bfloat162 v) : T2(__bfloat1622float2(v)) {}                       \
    EMU_INLINE explicit operator float2() const {                                                 \
      return {emu::fp8_to_float<E, M>(__x & 0xff), emu::fp8_to_float<E, M>(__x >> 8)};            \
    }                                                                                             \
    EMU_INLINE explicit operator __half2() const { return __float22half2_rn(float2(*this)); }     \
  };                                                                                              \
  struct alignas(4) T4 {                                                                          \
    __nv_fp8x4_storage_t __x;                                                                     \
    T4() = default;                                                                               \
    EMU_INLINE explicit T4(float4 v)                                                              \
        : __x(T(v.x).__x | T(v.y).__x << 8 | T(v.z).__x << 16 | unsigned(T(v.w).__x) << 24) {}    \
    EMU_INLINE explicit operator float4() const {                                                 \
      return {emu::fp8_to_float<E, M>(__x & 0xff), emu::fp8_to_float<E, M>(__x >> 8 & 0xff),      \
              emu::fp8_to_float<E, M>(__x >> 16 & 0xff), emu::fp8_to_float<E, M>(__x >> 24)};     \
    }                                                                                             \
  };
EMU_FP8(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3, 4, 3)
EMU_FP8(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2, 5, 2)
#undef EMU_FP8
