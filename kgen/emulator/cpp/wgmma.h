// The parts of wgmma: operands in shared memory, products of tiles of floats, and what a warpgroup has under way.
#pragma once

#include <string.h>

#include <list>

#include "machine.h"

namespace emu {

constexpr int kRows = 64, kThreads = 128, kMaxColumns = 256, kMaxDepth = 32;

// The values that accumulator registers will hold.
struct Accumulator {
  unsigned columns, pending;
  bool half;
  void* registers[kThreads];
  std::vector<float> tile;
};

struct Product {
  int kind, depth, flags;
  uint64_t a, b;
  bool accumulate;
  Accumulator* sum;
  std::vector<float> a_registers;  // [kRows][depth], for the forms with A in registers
};

struct Warpgroup {
  unsigned number, arrived;
  unsigned actor;  // 0: none yet
  Lane* first;     // of the first warp to come
  uint64_t issued, done;
  std::deque<Product> products;  // number `done` first
  std::list<Accumulator> sums;
  std::vector<float> a, b;  // the operands of the product at hand
  ClockRef waited;          // what the last wgmma_wait has told
  uint32_t waited_time;
};

// An operand in shared memory, from its descriptor. Source: PTX ISA, "Shared memory matrix layout": units of 16 bytes,
// eight rows of them together, groups of eight at the descriptor's two strides, addresses swizzled by their own bits.
struct Operand {
  unsigned start, leading, stride, swizzle;
  bool transposed;  // along M or N

  Operand(uint64_t descriptor, bool transposed)
      : start(unsigned(descriptor & 0x3fff) << 4),
        leading(unsigned(descriptor >> 16 & 0x3fff) << 4),
        stride(unsigned(descriptor >> 32 & 0x3fff) << 4),
        swizzle(descriptor >> 62 == 0 ? 0 : 256u >> (descriptor >> 62)),
        transposed(transposed) {}

  // The offset of a unit: of row (or column) `outer`, the `inner`-th along K; or, transposed, of k = `outer`, the
  // `inner`-th along M or N.
  unsigned unit(unsigned outer, unsigned inner) const {
    unsigned group = outer / 8, row = outer % 8, linear;
    if (swizzle == 0) {
      linear =
          start + row * kUnitBytes + (transposed ? inner * stride + group * leading : group * stride + inner * leading);
    } else {
      unsigned across = swizzle / kUnitBytes;
      linear = start + row * swizzle + group * stride +
               (transposed ? inner % across * kUnitBytes + inner / across * leading : inner * kUnitBytes);
      linear ^= (linear >> 3) & (swizzle - kUnitBytes);
    }
    return linear & 0x3ffff;
  }
};

// How deep an instruction of a kind (EmuWgmma) is.
int depth_of(int kind);
// Element `i` at `p`, of a kind.
float decode(int kind, const unsigned char* p, int i);
// Carries out a product: its accumulator's tile becomes or grows by a times b.
void multiply(Warpgroup& group, const Product& product, const unsigned char* arena);

}  // namespace emu
