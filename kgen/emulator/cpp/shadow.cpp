// The race and initialisation checks of shared memory.
#include "shadow.h"

#include <string.h>

#include <algorithm>

#include "machine.h"

namespace emu {

// Whether `lane` has seen what thread `other` did at `time`.
static bool ordered(const Lane* lane, unsigned other, uint32_t time) {
  if (other == lane->number || time <= lane->block->barrier_time) return true;
  return other / 32 == lane->warp->number && time <= lane->known[other % 32];
}

static void race(const Lane* lane, unsigned offset, const char* now, const char* before, unsigned other,
                 const void* pc) {
  const unsigned* thread = lane->block->lanes[other].thread;
  const char* remedy = other / 32 == lane->warp->number ? "__syncwarp or __syncthreads" : "__syncthreads";
  fail(lane, pc, "race on shared memory: %s offset %u, which thread (%u, %u, %u) %s with no %s in between", now,
       offset - kArenaStart, thread[0], thread[1], thread[2], before, remedy);
}

void SharedShadow::reset(unsigned bytes, unsigned from) {
  if (bytes > bytes_.size()) {
    bytes_.resize((bytes + 1023) / 1024 * 1024);
    words_.resize(bytes_.size() / 4);
  }
  // A word split between two variables keeps its bytes apart: the later variable must not reset the earlier.
  for (; from % 4 != 0 && from < bytes; ++from) {
    each(from, 1, [](Cell& cell, unsigned) { cell = Cell{}; });
  }
  if (from < bytes)
    memset(static_cast<void*>(&words_[from / 4]), 0, (bytes + 3) / 4 * sizeof(Cell) - from / 4 * sizeof(Cell));
}

template <class Visit>
void SharedShadow::each(unsigned offset, unsigned bytes, Visit visit) {
  for (unsigned at = offset, end = offset + bytes; at < end;) {
    Cell& word = words_[at / 4];
    if (at % 4 == 0 && end - at >= 4 && !(word.flags & kSplit)) {
      visit(word, at);
      at += 4;
      continue;
    }
    Cell* bytes_of_word = &bytes_[at / 4 * 4];
    if (!(word.flags & kSplit)) {
      std::fill_n(bytes_of_word, 4, word);
      word.flags |= kSplit;
    }
    for (unsigned stop = std::min(end, at / 4 * 4 + 4); at < stop; ++at) visit(bytes_[at], at);
  }
}

bool SharedShadow::superseded(const Lane* lane, const Cell& cell) {
  if (cell.many_warps || cell.reader_warp != lane->warp->number) return false;
  for (unsigned left = cell.readers; left != 0; left &= left - 1) {
    if (!ordered(lane, 32 * cell.reader_warp + __builtin_ctz(left), cell.read_time)) return false;
  }
  return true;
}

void SharedShadow::visit(Lane* lane, Cell& cell, unsigned offset, int access, const void* pc) {
  const Block* block = lane->block;
  const uint32_t now = block->time;
  bool atomic = access & kAtomic;
  if (cell.flags & kInFlight) {
    const unsigned* thread = block->lanes[cell.writer].thread;
    fail(lane, pc,
         "%s shared memory at offset %u, where a cp.async of thread (%u, %u, %u) is under way: no cp_async_wait has "
         "met it",
         access & kWrite ? "writes" : "reads", offset - kArenaStart, thread[0], thread[1], thread[2]);
  }
  if (cell.write_time != 0 && !ordered(lane, cell.writer, cell.write_time) &&
      !(atomic && (cell.flags & kAtomicWrite))) {
    race(lane, offset, access & kWrite ? "writes" : "reads", "wrote", cell.writer, pc);
  }
  if (access & kRead) {
    if (cell.write_time == 0) {
      fail(lane, pc, "reads shared memory at offset %u that nothing has written yet (never, or a barrier is missing)",
           offset - kArenaStart);
    }
    // An atomic (or volatile) read may meet a write: that is what it is for.
    if (!(access & (kWrite | kAtomic))) {
      unsigned warp = lane->warp->number, bit = 1u << lane->lane;
      // Earlier reads that this one is ordered after matter no more: what is ordered after this one is so after them.
      if (cell.read_time <= block->barrier_time || superseded(lane, cell)) {
        cell.readers = bit;
        cell.reader_warp = warp;
        cell.many_warps = 0;
      } else if (cell.reader_warp == warp) {
        cell.readers |= bit;
      } else {
        cell.many_warps = 1;
      }
      cell.read_time = now;
    }
  }
  if (access & kWrite) {
    if (cell.read_time > block->barrier_time) {
      unsigned other = 32 * cell.reader_warp + __builtin_ctz(cell.readers);
      if (cell.many_warps) {
        if (other / 32 != lane->warp->number) race(lane, offset, "writes", "read", other, pc);
        fail(lane, pc,
             "race on shared memory: writes offset %u, which several warps have read since the last __syncthreads",
             offset - kArenaStart);
      }
      for (unsigned left = cell.readers; left != 0; left &= left - 1) {
        other = 32 * cell.reader_warp + __builtin_ctz(left);
        if (!ordered(lane, other, cell.read_time)) race(lane, offset, "writes", "read", other, pc);
      }
    }
    cell.write_time = now;
    cell.writer = lane->number;
    cell.read_time = 0;
    cell.flags = (cell.flags & kSplit) | (atomic ? kAtomicWrite : 0);
  }
}

void SharedShadow::access(Lane* lane, unsigned offset, unsigned bytes, int access, const void* pc) {
  each(offset, bytes, [&](Cell& cell, unsigned at) { visit(lane, cell, at, access, pc); });
}

void SharedShadow::copy_issued(Lane* lane, unsigned offset, unsigned bytes, const void* pc) {
  each(offset, bytes, [&](Cell& cell, unsigned at) {
    visit(lane, cell, at, kWrite, pc);
    cell.flags |= kInFlight;
  });
}

void SharedShadow::copy_landed(Lane* lane, unsigned offset, unsigned bytes) {
  uint32_t now = lane->block->time;
  each(offset, bytes, [&](Cell& cell, unsigned) {
    cell.flags &= ~kInFlight;
    cell.write_time = now;
    cell.writer = lane->number;
  });
}

}  // namespace emu
