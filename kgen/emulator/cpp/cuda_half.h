// cuda_fp16.h and cuda_bf16.h: the two 16-bit formats and their intrinsics. All arithmetic is done in f32 and rounded
// once.
#pragma once

#include "float_types.h"

// Both formats offer the same operations under their own names: cuda_half_ops.h states them once for each.
#define EMU_T __half
#define EMU_T2 __half2
#define EMU_RAW __half_raw
#define EMU_RAW2 __half2_raw
#define EMU_DECODE emu::half_to_float
#define EMU_ENCODE emu::float_to_half
#define EMU_ENCODE_DOUBLE emu::double_to_half
#define EMU_NAME(before, after) before##half##after
#define EMU_ATOMIC_TYPE EMU_F16
#define EMU_ATOMIC_TYPE2 EMU_F16X2
#include "cuda_half_ops.h"

#define EMU_T __nv_bfloat16
#define EMU_T2 __nv_bfloat162
#define EMU_RAW __nv_bfloat16_raw
#define EMU_RAW2 __nv_bfloat162_raw
#define EMU_DECODE emu::bfloat_to_float
#define EMU_ENCODE emu::float_to_bfloat
#define EMU_ENCODE_DOUBLE emu::double_to_bfloat
#define EMU_NAME(before, after) before##bfloat16##after
#define EMU_ATOMIC_TYPE EMU_BF16
#define EMU_ATOMIC_TYPE2 EMU_BF16X2
#include "cuda_half_ops.h"

typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

EMU_INLINE float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
EMU_INLINE __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
EMU_INLINE __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
EMU_INLINE __half2 __float2half2_rn(float v) { return {__half(v), __half(v)}; }
EMU_INLINE __half2 __halves2half2(__half a, __half b) { return {a, b}; }
EMU_INLINE __half2 __half2half2(__half v) { return {v, v}; }
EMU_INLINE float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
EMU_INLINE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
EMU_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
EMU_INLINE __nv_bfloat162 __float2bfloat162_rn(float v) { return {__nv_bfloat16(v), __nv_bfloat16(v)}; }
EMU_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
EMU_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v) { return {v, v}; }
EMU_INLINE unsigned short __half_as_ushort(__half v) { return v.bits; }
EMU_INLINE short __half_as_short(__half v) { return short(v.bits); }
EMU_INLINE __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
EMU_INLINE __half __short_as_half(short bits) { return __half(__half_raw{(unsigned short)(bits)}); }
EMU_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
EMU_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }
#define CUDART_INF_FP16 __ushort_as_half(0x7c00)
#define CUDART_INF_BF16 __ushort_as_bfloat16(0x7f80)
