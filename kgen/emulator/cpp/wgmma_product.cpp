// The arithmetic of wgmma: operands gathered into tiles of floats, and multiplied.
#include <algorithm>

#include "float_types.h"
#include "wgmma.h"

namespace emu {
namespace {

typedef float Columns8 __attribute__((vector_size(32), aligned(4), may_alias));

template <int Kind>
struct Decode;
template <>
struct Decode<EMU_WGMMA_F16> {
  static constexpr int kDepth = 16;
  static float at(const unsigned char* p, int i) {
    uint16_t bits;
    memcpy(&bits, p + 2 * i, 2);
    return half_to_float(bits);
  }
};
template <>
struct Decode<EMU_WGMMA_BF16> {
  static constexpr int kDepth = 16;
  static float at(const unsigned char* p, int i) {
    uint16_t bits;
    memcpy(&bits, p + 2 * i, 2);
    return bfloat_to_float(bits);
  }
};
template <>
struct Decode<EMU_WGMMA_TF32> {
  static constexpr int kDepth = 8;
  static float at(const unsigned char* p, int i) {
    uint32_t bits;
    memcpy(&bits, p + 4 * i, 4);
    return bits_to_float(bits & 0xffffe000u);
  }
};
template <>
struct Decode<EMU_WGMMA_E4M3> {
  static constexpr int kDepth = 32;
  static float at(const unsigned char* p, int i) {
    static const Fp8Table<4, 3> table;
    return table.value[p[i]];
  }
};
template <>
struct Decode<EMU_WGMMA_E5M2> {
  static constexpr int kDepth = 32;
  static float at(const unsigned char* p, int i) {
    static const Fp8Table<5, 2> table;
    return table.value[p[i]];
  }
};

// An operand of `extent` rows or columns as floats: element (i, k) goes to to[i * across + k * along].
template <int Kind>
void gather(const unsigned char* arena, const Operand& operand, unsigned extent, float* to, unsigned across,
            unsigned along) {
  constexpr unsigned kDepth = Decode<Kind>::kDepth, kElements = kDepth / 2;  // of a unit
  unsigned outer = operand.transposed ? kDepth : extent, inner = operand.transposed ? extent / kElements : 2;
  unsigned step = operand.transposed ? across : along, outer_step = operand.transposed ? along : across;
  for (unsigned i = 0; i < outer; ++i) {
    for (unsigned j = 0; j < inner; ++j) {
      const unsigned char* unit = arena + operand.unit(i, j);
      float* element = to + i * outer_step + j * kElements * step;
      for (unsigned e = 0; e < kElements; ++e) element[e * step] = Decode<Kind>::at(unit, e);
    }
  }
}

// sum[64][columns] += a[64][Depth] * b[Depth][columns], `Width` vectors of columns at a time.
template <int Depth, int Width>
void multiply_columns(const float* a, const float* b, float* sum, unsigned columns, unsigned first) {
  for (unsigned m = 0; m < kRows; m += 4) {
    Columns8 total[4][Width];
    for (int i = 0; i < 4; ++i) {
      for (int w = 0; w < Width; ++w)
        total[i][w] = *reinterpret_cast<const Columns8*>(sum + (m + i) * columns + first + 8 * w);
    }
    for (int k = 0; k < Depth; ++k) {
      const float* row = b + k * columns + first;
      for (int w = 0; w < Width; ++w) {
        Columns8 right = *reinterpret_cast<const Columns8*>(row + 8 * w);
        for (int i = 0; i < 4; ++i) total[i][w] += a[(m + i) * Depth + k] * right;
      }
    }
    for (int i = 0; i < 4; ++i) {
      for (int w = 0; w < Width; ++w)
        *reinterpret_cast<Columns8*>(sum + (m + i) * columns + first + 8 * w) = total[i][w];
    }
  }
}

template <int Kind>
void multiply(Warpgroup& group, const Product& product, const unsigned char* arena) {
  constexpr int kDepth = Decode<Kind>::kDepth;
  group.a.resize(kRows * kMaxDepth);
  group.b.resize(kMaxDepth * kMaxColumns);
  float *a = group.a.data(), *b = group.b.data();
  Accumulator& sum = *product.sum;
  unsigned columns = sum.columns;
  const float* left = a;
  if (product.flags & EMU_WGMMA_REGISTERS) {
    left = product.a_registers.data();
  } else {
    gather<Kind>(arena, Operand(product.a, product.flags & EMU_WGMMA_TURN_A), kRows, a, kDepth, 1);
  }
  gather<Kind>(arena, Operand(product.b, product.flags & EMU_WGMMA_TURN_B), columns, b, 1, columns);
  if (!product.accumulate) std::fill(sum.tile.begin(), sum.tile.end(), 0.0f);
  unsigned first = 0;
  for (; first + 16 <= columns; first += 16) multiply_columns<kDepth, 2>(left, b, sum.tile.data(), columns, first);
  if (first < columns) multiply_columns<kDepth, 1>(left, b, sum.tile.data(), columns, first);
  if (sum.half) {
    for (float& value : sum.tile) value = half_to_float(float_to_half(value));
  }
}

}  // namespace

int depth_of(int kind) {
  return kind == EMU_WGMMA_TF32 ? 8 : kind == EMU_WGMMA_F16 || kind == EMU_WGMMA_BF16 ? 16 : 32;
}

float decode(int kind, const unsigned char* p, int i) {
  switch (kind) {
    case EMU_WGMMA_F16:
      return Decode<EMU_WGMMA_F16>::at(p, i);
    case EMU_WGMMA_BF16:
      return Decode<EMU_WGMMA_BF16>::at(p, i);
    case EMU_WGMMA_TF32:
      return Decode<EMU_WGMMA_TF32>::at(p, i);
    case EMU_WGMMA_E4M3:
      return Decode<EMU_WGMMA_E4M3>::at(p, i);
    default:
      return Decode<EMU_WGMMA_E5M2>::at(p, i);
  }
}

void multiply(Warpgroup& group, const Product& product, const unsigned char* arena) {
  switch (product.kind) {
    case EMU_WGMMA_F16:
      return multiply<EMU_WGMMA_F16>(group, product, arena);
    case EMU_WGMMA_BF16:
      return multiply<EMU_WGMMA_BF16>(group, product, arena);
    case EMU_WGMMA_TF32:
      return multiply<EMU_WGMMA_TF32>(group, product, arena);
    case EMU_WGMMA_E4M3:
      return multiply<EMU_WGMMA_E4M3>(group, product, arena);
    default:
      return multiply<EMU_WGMMA_E5M2>(group, product, arena);
  }
}

}  // namespace emu
