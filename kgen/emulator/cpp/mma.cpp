// mma.sync: gathers the fragments of a warp into small matrices, multiplies, and hands the result back.
//
// Fragments (PTX ISA, "Matrix fragments for mma"): with g = lane / 4, t = lane % 4 and P elements to a register,
// register j of A holds row g + 8 * (j % 2), k = P * t + 4 * P * (j / 2) onwards; register j of B holds column g, k = P
// * t + 4 * P * j onwards.
#include <string.h>

#include "collectives.h"
#include "float_types.h"

namespace emu {
namespace {

typedef float Row8 __attribute__((vector_size(32)));
typedef int IntRow8 __attribute__((vector_size(32)));

struct F16 {
  static constexpr int kPack = 2;
  static float decode(unsigned word, int i) { return half_to_float(uint16_t(word >> (16 * i))); }
};
struct Bf16 {
  static constexpr int kPack = 2;
  static float decode(unsigned word, int i) { return bits_to_float(word >> (16 * i) << 16); }
};
struct Tf32 {
  static constexpr int kPack = 1;
  static float decode(unsigned word, int) { return bits_to_float(word & 0xffffe000u); }
};
template <int Exponent, int Mantissa>
struct Fp8 {
  static constexpr int kPack = 4;
  static float decode(unsigned word, int i) {
    static const Fp8Table<Exponent, Mantissa> table;
    return table.value[word >> (8 * i) & 0xff];
  }
};
struct S8 {
  static constexpr int kPack = 4;
  static int decode(unsigned word, int i) { return int8_t(word >> (8 * i)); }
};

template <class Type, int K, class Element>
void gather(const Lane* lanes, Element (&a)[16][K], Element (&b)[K][8]) {
  constexpr int kPack = Type::kPack, kHalves = K / (4 * kPack);
  for (int l = 0; l < 32; ++l) {
    const unsigned* word = lanes[l].value.word;
    int g = l / 4, k = kPack * (l % 4);
    for (int half = 0; half < kHalves; ++half) {
      for (int i = 0; i < kPack; ++i) {
        a[g][k + 4 * kPack * half + i] = Type::decode(word[2 * half], i);
        a[g + 8][k + 4 * kPack * half + i] = Type::decode(word[2 * half + 1], i);
        b[k + 4 * kPack * half + i][g] = Type::decode(word[4 + half], i);
      }
    }
  }
}

template <class Type, int K>
void multiply_f32(Lane* lanes) {
  alignas(32) float a[16][K], b[K][8], d[16][8];
  gather<Type, K>(lanes, a, b);
  for (int l = 0; l < 32; ++l) {
    memcpy(&d[l / 4][2 * (l % 4)], &lanes[l].value.word[6], 8);
    memcpy(&d[l / 4 + 8][2 * (l % 4)], &lanes[l].value.word[8], 8);
  }
  for (int m = 0; m < 16; ++m) {
    Row8 sum = *reinterpret_cast<Row8*>(d[m]);
    for (int k = 0; k < K; ++k) sum += a[m][k] * *reinterpret_cast<Row8*>(b[k]);
    *reinterpret_cast<Row8*>(d[m]) = sum;
  }
  for (int l = 0; l < 32; ++l) {
    memcpy(&lanes[l].value.word[0], &d[l / 4][2 * (l % 4)], 8);
    memcpy(&lanes[l].value.word[2], &d[l / 4 + 8][2 * (l % 4)], 8);
  }
}

template <int K>
void multiply_f16(Lane* lanes) {
  alignas(32) float a[16][K], b[K][8], d[16][8];
  gather<F16, K>(lanes, a, b);
  auto row = [&](int l, int j) { return &d[l / 4 + 8 * j][2 * (l % 4)]; };
  for (int l = 0; l < 32; ++l) {
    for (int j = 0; j < 2; ++j) {
      for (int i = 0; i < 2; ++i) row(l, j)[i] = F16::decode(lanes[l].value.word[6 + j], i);
    }
  }
  for (int m = 0; m < 16; ++m) {
    Row8 sum = *reinterpret_cast<Row8*>(d[m]);
    for (int k = 0; k < K; ++k) sum += a[m][k] * *reinterpret_cast<Row8*>(b[k]);
    *reinterpret_cast<Row8*>(d[m]) = sum;
  }
  for (int l = 0; l < 32; ++l) {
    for (int j = 0; j < 2; ++j)
      lanes[l].value.word[j] = float_to_half(row(l, j)[0]) | unsigned(float_to_half(row(l, j)[1])) << 16;
  }
}

void multiply_s32(Lane* lanes) {
  constexpr int K = 32;
  alignas(32) int a[16][K], b[K][8], d[16][8];
  gather<S8, K>(lanes, a, b);
  for (int l = 0; l < 32; ++l) {
    memcpy(&d[l / 4][2 * (l % 4)], &lanes[l].value.word[6], 8);
    memcpy(&d[l / 4 + 8][2 * (l % 4)], &lanes[l].value.word[8], 8);
  }
  for (int m = 0; m < 16; ++m) {
    IntRow8 sum = *reinterpret_cast<IntRow8*>(d[m]);  // compiled with -fwrapv
    for (int k = 0; k < K; ++k) sum += a[m][k] * *reinterpret_cast<IntRow8*>(b[k]);
    *reinterpret_cast<IntRow8*>(d[m]) = sum;
  }
  for (int l = 0; l < 32; ++l) {
    memcpy(&lanes[l].value.word[0], &d[l / 4][2 * (l % 4)], 8);
    memcpy(&lanes[l].value.word[2], &d[l / 4 + 8][2 * (l % 4)], 8);
  }
}

void multiply(int kind, Lane* lanes) {
  switch (kind) {
    case EMU_MMA_K8_F16_F32:
      return multiply_f32<F16, 8>(lanes);
    case EMU_MMA_K8_F16_F16:
      return multiply_f16<8>(lanes);
    case EMU_MMA_K16_F16_F32:
      return multiply_f32<F16, 16>(lanes);
    case EMU_MMA_K16_F16_F16:
      return multiply_f16<16>(lanes);
    case EMU_MMA_K16_BF16_F32:
      return multiply_f32<Bf16, 16>(lanes);
    case EMU_MMA_K8_TF32_F32:
      return multiply_f32<Tf32, 8>(lanes);
    case EMU_MMA_K32_S8_S32:
      return multiply_s32(lanes);
    case EMU_MMA_K32_E4M3_F32:
      return multiply_f32<Fp8<4, 3>, 32>(lanes);
    case EMU_MMA_K32_E5M2_F32:
      return multiply_f32<Fp8<5, 2>, 32>(lanes);
  }
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" EmuWords emu_mma(int kind, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
                            unsigned d0, unsigned d1, unsigned d2, unsigned d3) {
  Lane* lane = current;
  unsigned* word = lane->value.word;
  word[0] = a0, word[1] = a1, word[2] = a2, word[3] = a3, word[4] = b0, word[5] = b1;
  word[6] = d0, word[7] = d1, word[8] = d2, word[9] = d3;
  if (arrive(lane, kMma, kind, kFullMask, EMU_PC)) {
    if (lane->wait.mask != kFullMask)
      fail(lane, lane->pc, "mma needs all 32 lanes of the warp, which has lanes %08x only", lane->wait.mask);
    multiply(kind, lane->warp->lanes);
    ++lane->worker->counters.mma;
    release(lane);
  }
  return {lane->value.wide[0], lane->value.wide[1]};
}
