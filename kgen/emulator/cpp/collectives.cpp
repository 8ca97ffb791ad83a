// Barriers and warp-wide operations. The last lane to arrive carries the operation out for all.
#include "collectives.h"

#include <stdio.h>

#include <algorithm>

namespace emu {

// Time for the access checks: the lanes of `mask` now know all that any of them knew.
static void join_clocks(Warp* warp, unsigned mask) {
  Block* block = warp->lanes[0].block;
  uint32_t now = block->cluster->time++;
  if (block->cluster->fine) join_far(warp->lanes, mask);
  if (mask == warp->members) {
    for (unsigned l = 0; l < 32 && (mask >> l & 1); ++l) std::fill_n(warp->lanes[l].known, 32, now);
    return;
  }
  uint32_t joined[32] = {};
  for (unsigned l = 0; l < 32; ++l) {
    if (!(mask >> l & 1)) continue;
    for (unsigned i = 0; i < 32; ++i) joined[i] = std::max(joined[i], warp->lanes[l].known[i]);
  }
  for (unsigned l = 0; l < 32; ++l) {
    if (mask >> l & 1) joined[l] = now;
  }
  for (unsigned l = 0; l < 32; ++l) {
    if (mask >> l & 1) std::copy_n(joined, 32, warp->lanes[l].known);
  }
}

static void mismatch(const Lane* lane, const Lane* other) {
  fail(lane, lane->pc,
       "divergent collective: this lane is at %s of lanes %08x (variant %d), but thread (%u, %u, %u), named in the "
       "mask, is at %s "
       "of lanes %08x (variant %d), @[%lx]",
       wait_name(lane->wait), lane->wait.mask, lane->wait.detail, other->thread[0], other->thread[1], other->thread[2],
       wait_name(other->wait), other->wait.mask, other->wait.detail, code_offset(lane->worker->session, other->pc));
}

bool arrive(Lane* lane, WaitKind kind, int detail, unsigned mask, const void* pc) {
  Warp* warp = lane->warp;
  unsigned bit = 1u << lane->lane;
  lane->wait.kind = kind;
  lane->wait.detail = uint16_t(detail);
  lane->wait.mask = mask;
  lane->pc = pc;
  if (__builtin_expect(!(mask & bit), 0))
    fail(lane, pc, "%s: the mask %08x does not name the calling lane %u", wait_name(lane->wait), mask, lane->lane);
  if (__builtin_expect(mask & ~(warp->members & ~warp->exited), 0)) {
    // A mask of all lanes in a warp that has fewer is how every kernel is written.
    mask &= warp->members;
    lane->wait.mask = mask;
    if (unsigned gone = mask & warp->exited)
      fail(lane, pc, "%s: lanes %08x, named in the mask %08x, have ended", wait_name(lane->wait), gone, mask);
  }
  warp->waiting |= bit;
  unsigned others = warp->waiting & mask & ~bit;
  if (others != 0) {
    const Lane* other = &warp->lanes[__builtin_ctz(others)];
    if (lane->wait.key != other->wait.key && (other->wait.mask & bit)) mismatch(lane, other);
  }
  if ((warp->waiting & mask) != mask) {
    block_until_woken(lane);
    return false;
  }
  for (unsigned left = others; left != 0; left &= left - 1) {
    const Lane* other = &warp->lanes[__builtin_ctz(left)];
    if (lane->wait.key != other->wait.key) mismatch(lane, other);
  }
  return true;
}

void release(Lane* lane) {
  Block* block = lane->block;
  if (!block->traffic.empty()) block->traffic[lane->warp->number].flush(lane->worker->sites);
  lane->warp->waiting &= ~lane->wait.mask;
  lane->warp->runnable |= lane->wait.mask;
}

static int barrier(Lane* lane, int mode, int predicate, int line, const void* pc) {
  Block* block = lane->block;
  lane->wait.key = 0;
  lane->wait.kind = kBarrier;
  lane->pc = pc;
  if (block->arrived == 0) {
    block->barrier_mode = mode;
    block->barrier_line = line;
    block->barrier_pc = pc;
    block->barrier_sum = 0;
    block->barrier_first = lane;
  } else if (block->barrier_mode != mode || block->barrier_line != line) {
    const Lane* first = block->barrier_first;
    fail(lane, pc, "divergent barrier: thread (%u, %u, %u) waits at another __syncthreads, @[%lx]", first->thread[0],
         first->thread[1], first->thread[2], code_offset(lane->worker->session, first->pc));
  }
  block->barrier_sum += predicate != 0;
  if (++block->arrived < block->thread_count) {
    block_until_woken(lane);
    return block->barrier_result;
  }
  int sum = block->barrier_sum;
  block->barrier_result = mode == EMU_BARRIER_OR    ? sum != 0
                          : mode == EMU_BARRIER_AND ? sum == int(block->thread_count)
                                                    : sum;
  block->arrived = 0;
  if (block->cluster->fine) join_block(block);
  block->barrier_time = block->cluster->time++;
  for (Warp& warp : block->warps) {
    warp.runnable = warp.members;
    block->ready |= 1u << warp.number;
  }
  for (Traffic& traffic : block->traffic) traffic.flush(lane->worker->sites);
  ++lane->worker->counters.barriers;
  return block->barrier_result;
}

static uint64_t shuffled(const Warp* warp, unsigned lane, int mode, int operand, int width, unsigned mask) {
  // PTX ISA, shfl.sync: a source outside the segment leaves the lane's own value.
  int base = lane & ~(width - 1), source = int(lane);
  switch (mode) {
    case EMU_SHUFFLE_INDEX:
      source = base + (operand & (width - 1));
      break;
    case EMU_SHUFFLE_UP:
      source = int(lane) - operand < base ? int(lane) : int(lane) - operand;
      break;
    case EMU_SHUFFLE_DOWN:
      source = int(lane) + operand >= base + width ? int(lane) : int(lane) + operand;
      break;
    default:
      source = (int(lane) ^ operand) >= base + width ? int(lane) : int(lane) ^ operand;
      break;
  }
  const Lane* from = &warp->lanes[source];
  if (!(mask >> source & 1)) {
    const Lane* reader = &warp->lanes[lane];
    fail(reader, reader->pc, "a shuffle reads lane %d, which the mask %08x does not name", source, mask);
  }
  return from->value.wide[0];
}

}  // namespace emu

using namespace emu;

extern "C" {

int emu_barrier(int mode, int predicate, int line) { return barrier(current, mode, predicate, line, EMU_PC); }

void emu_sync_warp(unsigned mask) {
  Lane* lane = current;
  if (arrive(lane, kSyncWarp, 0, mask, EMU_PC)) {
    if (lane->worker->launch->checks) join_clocks(lane->warp, lane->wait.mask);
    ++lane->worker->counters.warp_syncs;
    release(lane);
  }
}

uint64_t emu_shuffle(int mode, unsigned mask, uint64_t value, int operand, int width) {
  Lane* lane = current;
  if (width < 1 || width > 32 || (width & (width - 1)) != 0)
    fail(lane, EMU_PC, "a shuffle's width is a power of two up to 32, not %d", width);
  lane->value.wide[0] = value;
  lane->value.word[2] = unsigned(operand);
  if (arrive(lane, kShuffle, mode << 8 | width, mask, EMU_PC)) {
    Warp* warp = lane->warp;
    for (unsigned left = lane->wait.mask; left != 0; left &= left - 1) {
      unsigned l = __builtin_ctz(left);
      int operand = int(warp->lanes[l].value.word[2]);
      warp->lanes[l].value.wide[2] = shuffled(warp, l, mode, operand, width, lane->wait.mask);
    }
    ++lane->worker->counters.shuffles;
    release(lane);
  }
  return lane->value.wide[2];
}

unsigned emu_vote(int mode, unsigned mask, int predicate) {
  Lane* lane = current;
  lane->value.word[0] = predicate != 0;
  if (arrive(lane, kVote, mode, mask, EMU_PC)) {
    Warp* warp = lane->warp;
    unsigned ballot = 0;
    for (unsigned left = lane->wait.mask; left != 0; left &= left - 1) {
      unsigned l = __builtin_ctz(left);
      ballot |= warp->lanes[l].value.word[0] << l;
    }
    unsigned result = mode == EMU_VOTE_BALLOT ? ballot : mode == EMU_VOTE_ANY ? ballot != 0 : ballot == lane->wait.mask;
    for (unsigned left = lane->wait.mask; left != 0; left &= left - 1)
      warp->lanes[__builtin_ctz(left)].value.word[1] = result;
    release(lane);
  }
  return lane->value.word[1];
}

unsigned emu_match_any(unsigned mask, uint64_t value) {
  Lane* lane = current;
  lane->value.wide[0] = value;
  if (arrive(lane, kMatch, 0, mask, EMU_PC)) {
    Warp* warp = lane->warp;
    for (unsigned left = lane->wait.mask; left != 0; left &= left - 1) {
      Lane& one = warp->lanes[__builtin_ctz(left)];
      one.value.word[2] = 0;
      for (unsigned rest = lane->wait.mask; rest != 0; rest &= rest - 1) {
        unsigned l = __builtin_ctz(rest);
        one.value.word[2] |= unsigned(warp->lanes[l].value.wide[0] == one.value.wide[0]) << l;
      }
    }
    release(lane);
  }
  return lane->value.word[2];
}

unsigned emu_reduce(int mode, int is_signed, unsigned mask, unsigned value) {
  Lane* lane = current;
  lane->value.word[0] = value;
  if (arrive(lane, kReduce, mode << 1 | is_signed, mask, EMU_PC)) {
    Warp* warp = lane->warp;
    unsigned left = lane->wait.mask, result = warp->lanes[__builtin_ctz(left)].value.word[0];
    while ((left &= left - 1) != 0) {
      unsigned next = warp->lanes[__builtin_ctz(left)].value.word[0];
      bool less = is_signed ? int(next) < int(result) : next < result;
      switch (mode) {
        case EMU_REDUCE_ADD:
          result += next;
          break;
        case EMU_REDUCE_MIN:
          result = less ? next : result;
          break;
        case EMU_REDUCE_MAX:
          result = less ? result : next;
          break;
        case EMU_REDUCE_AND:
          result &= next;
          break;
        case EMU_REDUCE_OR:
          result |= next;
          break;
        default:
          result ^= next;
          break;
      }
    }
    for (left = lane->wait.mask; left != 0; left &= left - 1) warp->lanes[__builtin_ctz(left)].value.word[1] = result;
    release(lane);
  }
  return lane->value.word[1];
}

unsigned emu_active_mask() { return current->warp->members & ~current->warp->exited; }

void emu_yield() { current->worker->poll(EMU_PC); }
}
