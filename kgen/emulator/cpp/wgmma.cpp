// wgmma: the products of a warpgroup, carried out when somebody waits for them (or at once, by Options.async_mode).
//
// The four warps meet at each instruction. Until a wgmma_wait says that they are done, the accumulators' registers hold
// NaN and their values live here, as one tile of floats for all threads; products read shared memory only then, so that
// what is overwritten too early shows.
#include "wgmma.h"

#include <string.h>

#include "collectives.h"
#include "float_types.h"

namespace emu {
namespace {

// Calls visit(thread, register, tile index) for pairs of neighbouring columns: warp w has rows 16 w onwards, as of mma.
template <class Visit>
void each_pair(unsigned columns, Visit visit) {
  for (unsigned t = 0; t < kThreads; ++t) {
    unsigned row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (unsigned j = 0; j < columns / 8; ++j) {
      for (unsigned h = 0; h < 2; ++h) visit(t, 2 * j + h, (row + 8 * h) * columns + 8 * j + column);
    }
  }
}

void take_registers(Accumulator& sum) {
  each_pair(sum.columns, [&](unsigned thread, unsigned pair, unsigned at) {
    if (sum.half) {
      unsigned word;
      memcpy(&word, static_cast<unsigned char*>(sum.registers[thread]) + 4 * pair, 4);
      sum.tile[at] = half_to_float(uint16_t(word));
      sum.tile[at + 1] = half_to_float(uint16_t(word >> 16));
    } else {
      memcpy(&sum.tile[at], static_cast<unsigned char*>(sum.registers[thread]) + 8 * pair, 8);
    }
  });
}

void give_registers(const Accumulator& sum) {
  each_pair(sum.columns, [&](unsigned thread, unsigned pair, unsigned at) {
    if (sum.half) {
      unsigned word = float_to_half(sum.tile[at]) | unsigned(float_to_half(sum.tile[at + 1])) << 16;
      memcpy(static_cast<unsigned char*>(sum.registers[thread]) + 4 * pair, &word, 4);
    } else {
      memcpy(static_cast<unsigned char*>(sum.registers[thread]) + 8 * pair, &sum.tile[at], 8);
    }
  });
}

// Carries out the products up to number `end`.
void complete(Block* block, Warpgroup& group, uint64_t end) {
  for (; group.done < end; ++group.done) {
    const Product& product = group.products.front();
    multiply(group, product, block->arena);
    Accumulator* sum = product.sum;
    if (--sum->pending == 0) {
      give_registers(*sum);
      group.sums.remove_if([&](const Accumulator& one) { return &one == sum; });
    }
    group.products.pop_front();
  }
}

// What the threads bring: see `enter`.
const void* registers_of(const Lane& lane) { return reinterpret_cast<const void*>(lane.value.wide[4]); }

void check_operand(Lane* lane, const Operand& operand, uint64_t descriptor, unsigned extent, int kind, const char* name,
                   std::vector<unsigned>& units) {
  const Block* block = lane->block;
  if (descriptor >> 49 & 7) {
    fail(lane, lane->pc, "wgmma: the descriptor of %s, %016llx, has a base offset; 0 is what is known here", name,
         (unsigned long long)descriptor);
  }
  unsigned elements = unsigned(depth_of(kind)) / 2;
  unsigned outer = operand.transposed ? unsigned(depth_of(kind)) : extent,
           inner = operand.transposed ? extent / elements : 2;
  for (unsigned i = 0; i < outer; ++i) {
    for (unsigned j = 0; j < inner; ++j) {
      unsigned offset = operand.unit(i, j);
      if (offset < kArenaStart || offset + kUnitBytes > block->static_end) {
        fail(lane, lane->pc,
             "wgmma: %s, descriptor %016llx, is out of bounds of shared memory: %s %u, unit %u at offset %d, the block "
             "has %u bytes",
             name, (unsigned long long)descriptor, operand.transposed ? "k" : "row", i, j,
             int(offset) - int(kArenaStart), block->static_end - kArenaStart);
      }
      units.push_back(offset);
    }
  }
}

// All four warps have come: `last` is of the last.
void carry_out(Lane* last, Warpgroup& group, int kind, unsigned columns, int flags) {
  Block* block = last->block;
  Worker* worker = last->worker;
  Lane* lanes = &block->lanes[kThreads * group.number];
  uint64_t a = lanes[0].value.wide[2], b = lanes[0].value.wide[3];
  bool accumulate = lanes[0].value.word[10] != 0;
  Product product = {kind, depth_of(kind), flags, a, b, accumulate, nullptr, {}};
  Operand left(a, flags & EMU_WGMMA_TURN_A), right(b, flags & EMU_WGMMA_TURN_B);
  std::vector<unsigned> units;
  if (!(flags & EMU_WGMMA_REGISTERS)) check_operand(last, left, a, kRows, kind, "A", units);
  check_operand(last, right, b, columns, kind, "B", units);
  if (worker->launch->checks) {
    Cluster* cluster = block->cluster;
    cluster->fine = true;
    if (group.actor == 0) group.actor = new_actor(cluster, kWarpgroupReads, block, group.number);
    Lane* all[kThreads];
    for (int t = 0; t < kThreads; ++t) all[t] = &lanes[t];
    block->shadow.units_read(all, kThreads, units.data(), unsigned(units.size()), group.actor, cluster->time, last->pc);
    ++cluster->time;
  }
  if (flags & EMU_WGMMA_REGISTERS) {
    // Register j of a thread: row g + 8 (j % 2), P elements from k = P t + 4 P (j / 2) on, as of mma.
    unsigned depth = unsigned(product.depth), pack = depth / 8;
    product.a_registers.resize(kRows * depth);
    for (unsigned t = 0; t < kThreads; ++t) {
      auto bytes = reinterpret_cast<const unsigned char*>(lanes[t].value.word);
      for (unsigned j = 0; j < 4; ++j) {
        unsigned row = t / 32 * 16 + t % 32 / 4 + 8 * (j % 2), k = pack * (t % 4) + 4 * pack * (j / 2);
        for (unsigned e = 0; e < pack; ++e) {
          product.a_registers[row * depth + k + e] = decode(kind, bytes + 4 * j, e);
        }
      }
    }
  }
  for (Accumulator& sum : group.sums) {
    if (sum.registers[0] == registers_of(lanes[0])) product.sum = &sum;
  }
  if (product.sum == nullptr) {
    for (int w = 0; w < 4; ++w) {
      if (block->warps[4 * group.number + w].fenced) continue;
      fail(last, last->pc, "wgmma: warp %u has executed no wgmma_fence since the accumulator's registers were its own",
           4 * group.number + w);
    }
    group.sums.emplace_back();
    Accumulator& sum = group.sums.back();
    sum.columns = columns;
    sum.pending = 0;
    sum.half = flags & EMU_WGMMA_HALF;
    sum.tile.resize(kRows * columns);
    size_t bytes = columns * (sum.half ? 1 : 2);
    for (int t = 0; t < kThreads; ++t) sum.registers[t] = const_cast<void*>(registers_of(lanes[t]));
    if (accumulate) take_registers(sum);
    for (int t = 0; t < kThreads; ++t) memset(sum.registers[t], 0xff, bytes);
    product.sum = &sum;
  } else if (product.sum->columns != columns || product.sum->half != bool(flags & EMU_WGMMA_HALF)) {
    fail(last, last->pc, "wgmma: its accumulator is that of a wgmma of another shape under way");
  }
  ++product.sum->pending;
  group.products.push_back(std::move(product));
  ++group.issued;
  ++worker->counters.wgmma;
  int mode = worker->launch->async_mode;
  if (mode == kEager || (mode == kRandom && (worker->random() & 1))) complete(block, group, group.issued);
}

void enter(Lane* lane, int kind, unsigned columns, int flags, const void* pc) {
  const int detail = kind << 10 | int(columns / 8) << 4 | flags;
  if (!arrive(lane, kWgmma, detail, kFullMask, pc)) return;
  Block* block = lane->block;
  Warp* warp = lane->warp;
  if (warp->number / 4 >= block->warpgroups.size() || warp->members != kFullMask) {
    fail(lane, pc, "wgmma: warp %u is not one of four whole warps, which start at a multiple of four", warp->number);
  }
  Warpgroup& group = *block->warpgroups[warp->number / 4];
  auto check_equal = [&](const Lane& one, const Lane& other) {
    bool same = one.value.wide[3] == other.value.wide[3] && one.value.word[10] == other.value.word[10] &&
                ((flags & EMU_WGMMA_REGISTERS) || one.value.wide[2] == other.value.wide[2]);
    if (same) return;
    fail(&one, pc,
         "wgmma: the threads of a warpgroup disagree: descriptors %016llx and %016llx, accumulate %u; thread (%u, %u, "
         "%u) "
         "has %016llx, %016llx, %u",
         (unsigned long long)one.value.wide[2], (unsigned long long)one.value.wide[3], one.value.word[10],
         other.thread[0], other.thread[1], other.thread[2], (unsigned long long)other.value.wide[2],
         (unsigned long long)other.value.wide[3], other.value.word[10]);
  };
  for (int l = 1; l < 32; ++l) check_equal(warp->lanes[l], warp->lanes[0]);
  if (group.arrived == 0) {
    group.first = lane;
  } else {
    const Lane* first = group.first;
    if (first->wait.key != lane->wait.key) {
      fail(lane, pc, "divergent wgmma: thread (%u, %u, %u) of this warpgroup is at another, @[%lx]", first->thread[0],
           first->thread[1], first->thread[2], code_offset(lane->worker->session, first->pc));
    }
    check_equal(*lane, *first);
  }
  if (++group.arrived < 4) return block_until_woken(lane);
  group.arrived = 0;
  carry_out(lane, group, kind, columns, flags);
  for (unsigned w = 0; w < 4; ++w) {
    Warp& other = block->warps[4 * group.number + w];
    other.waiting = 0;
    other.runnable = other.members;
    block->ready |= 1u << other.number;
  }
}

bool meet_warp(Lane* lane, WaitKind kind, int detail, const void* pc) {
  if (lane->warp->number / 4 >= lane->block->warpgroups.size()) {
    fail(lane, pc, "wgmma: warp %u is not one of four whole warps, which start at a multiple of four",
         lane->warp->number);
  }
  return arrive(lane, kind, detail, kFullMask, pc);
}

}  // namespace

void start_warpgroups(Block& block) {
  block.warpgroups.resize(block.thread_count / kThreads);
  for (unsigned i = 0; i < block.warpgroups.size(); ++i) {
    block.warpgroups[i] = std::make_shared<Warpgroup>();
    block.warpgroups[i]->number = i;
  }
}

void end_wgmma(Lane* lane) {
  unsigned number = lane->warp->number / 4;
  if (number >= lane->block->warpgroups.size()) return;
  const Warpgroup& group = *lane->block->warpgroups[number];
  if (group.done == group.issued && lane->warp->groups.empty()) return;
  fail(lane, lane->pc,
       "the thread ends while a wgmma of its warpgroup is under way: wgmma_commit and wgmma_wait<0> are missing");
}

}  // namespace emu

using namespace emu;

extern "C" {

void emu_wgmma(int kind, int columns, int flags, void* d, uint64_t a, uint64_t b, int accumulate) {
  Lane* lane = current;
  lane->value.wide[2] = a;
  lane->value.wide[3] = b;
  lane->value.wide[4] = reinterpret_cast<uint64_t>(d);
  lane->value.word[10] = accumulate != 0;
  enter(lane, kind, unsigned(columns), flags, EMU_PC);
}

void emu_wgmma_registers(int kind, int columns, int flags, void* d, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                         uint64_t b, int accumulate) {
  Lane* lane = current;
  unsigned* word = lane->value.word;
  word[0] = a0, word[1] = a1, word[2] = a2, word[3] = a3;
  lane->value.wide[2] = 0;
  lane->value.wide[3] = b;
  lane->value.wide[4] = reinterpret_cast<uint64_t>(d);
  word[10] = accumulate != 0;
  enter(lane, kind, unsigned(columns), flags | EMU_WGMMA_REGISTERS, EMU_PC);
}

void emu_wgmma_fence() {
  Lane* lane = current;
  if (meet_warp(lane, kWgmmaFence, 0, EMU_PC)) {
    lane->warp->fenced = true;
    release(lane);
  }
}

void emu_wgmma_commit() {
  Lane* lane = current;
  if (meet_warp(lane, kWgmmaCommit, 0, EMU_PC)) {
    const Warpgroup& group = *lane->block->warpgroups[lane->warp->number / 4];
    lane->warp->groups.push_back({group.issued, lane->block->cluster->time});
    release(lane);
  }
}

void emu_wgmma_wait(int pending) {
  Lane* lane = current;
  if (meet_warp(lane, kWgmmaWait, pending, EMU_PC)) {
    Block* block = lane->block;
    Warp* warp = lane->warp;
    Warpgroup& group = *block->warpgroups[warp->number / 4];
    if (warp->groups.size() > size_t(pending)) {
      Warp::Group last = {};
      while (warp->groups.size() > size_t(pending)) {
        last = warp->groups.front();
        warp->groups.pop_front();
      }
      complete(block, group, last.issued);
      if (group.done == group.issued) warp->fenced = false;
      if (lane->worker->launch->checks && group.actor != 0) {
        // The wgmma of these groups began before the commit. One clock for all lanes: what is shared is joined once.
        if (!group.waited || group.waited_time != last.time) {
          group.waited = clock_of(group.actor, last.time - 1);
          group.waited_time = last.time;
        }
        for (int l = 0; l < 32; ++l) acquire(&warp->lanes[l], group.waited);
      }
    }
    release(lane);
  }
}
}
