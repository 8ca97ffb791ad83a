// Bit-exact conversions between the narrow floating-point formats and f32/f64: round to nearest, ties to even.
#pragma once

#include <stdint.h>
#include <string.h>

namespace emu {

inline float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

// An f32's bits as tf32, which has 10 bits after the leading one.
inline uint32_t round_to_tf32(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;  // the GPU's NaN
  return (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u;    // infinity stays: its low bits are zero
}

// The compiler's _Float16 rounds as IEEE 754 says, in one instruction where the CPU has one.
inline float half_to_float(uint16_t bits) {
  _Float16 value;
  memcpy(&value, &bits, 2);
  return float(value);
}
inline uint16_t float_to_half(float value) {
  if (value != value) return 0x7fff;  // the GPU's NaN
  _Float16 half = _Float16(value);
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}
inline uint16_t double_to_half(double value) {
  if (value != value) return 0x7fff;
  _Float16 half = _Float16(value);
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}

inline float bfloat_to_float(uint16_t bits) { return bits_to_float(uint32_t(bits) << 16); }
inline uint16_t float_to_bfloat(float value) {
  if (value != value) return 0x7fff;
  uint32_t bits = float_to_bits(value);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
inline uint16_t double_to_bfloat(double value) {
  // Round to odd first: what is cut off stays visible, so that the second rounding is as good as the only one.
  float rounded = float(value);
  if (double(rounded) != value && value == value) {
    uint32_t bits = float_to_bits(rounded);
    bool away = (rounded < 0 ? -double(rounded) : double(rounded)) > (value < 0 ? -value : value);
    if (away) --bits;
    rounded = bits_to_float(bits | 1);
  }
  return float_to_bfloat(rounded);
}

// fp8 (OCP): e4m3 has no infinity and one NaN code, e5m2 is like IEEE.
template <int Exponent, int Mantissa>
inline float fp8_to_float(uint8_t bits) {
  constexpr int kBias = (1 << (Exponent - 1)) - 1;
  uint32_t sign = uint32_t(bits >> 7) << 31, exponent = bits >> Mantissa & ((1 << Exponent) - 1),
           mantissa = bits & ((1 << Mantissa) - 1);
  if (Exponent == 4 && (bits & 0x7f) == 0x7f) return bits_to_float(0x7fffffff);
  if (Exponent == 5 && exponent == 31) return mantissa ? bits_to_float(0x7fffffff) : bits_to_float(sign | 0x7f800000);
  float magnitude = exponent == 0 ? float(mantissa) * bits_to_float(uint32_t(127 + 1 - kBias - Mantissa) << 23)
                                  : bits_to_float((exponent + 127 - kBias) << 23 | mantissa << (23 - Mantissa));
  return bits_to_float(float_to_bits(magnitude) | sign);
}

// `saturate`: too large becomes the largest finite value, as do infinities; else NaN (e4m3) or infinity (e5m2).
template <int Exponent, int Mantissa>
inline uint8_t double_to_fp8(double value, bool saturate) {
  constexpr int kBias = (1 << (Exponent - 1)) - 1;
  constexpr uint8_t kMax = Exponent == 4 ? 0x7e : 0x7b, kOverflow = Exponent == 4 ? 0x7f : 0x7c;
  if (value != value) return 0x7f;
  uint64_t bits;
  memcpy(&bits, &value, 8);
  uint8_t sign = uint8_t(bits >> 63 << 7);
  int exponent = int(bits >> 52 & 0x7ff) - 1023;
  uint64_t significand = (bits & ((uint64_t(1) << 52) - 1)) | (exponent == -1023 ? 0 : uint64_t(1) << 52);
  if (exponent > kBias + 1) return sign | (saturate ? kMax : kOverflow);
  // Bits to drop so that the unit in the last place is that of the target.
  int least = exponent < 1 - kBias ? 1 - kBias : exponent;
  int drop = 52 - Mantissa + (least - exponent);
  if (drop > 60) return sign;
  uint64_t kept = significand >> drop, rest = significand & ((uint64_t(1) << drop) - 1),
           middle = uint64_t(1) << (drop - 1);
  if (rest > middle || (rest == middle && (kept & 1))) ++kept;
  // A carry out of the mantissa moves into the exponent, which is what it should do.
  unsigned code = kept >> Mantissa == 0 ? unsigned(kept) : unsigned(kept) + (unsigned(least + kBias - 1) << Mantissa);
  if (code > kMax) return sign | (saturate ? kMax : kOverflow);
  return uint8_t(sign | code);
}

template <int Exponent, int Mantissa>
struct Fp8Table {
  float value[256];
  Fp8Table() {
    for (int i = 0; i < 256; ++i) value[i] = fp8_to_float<Exponent, Mantissa>(uint8_t(i));
  }
};

}  // namespace emu
