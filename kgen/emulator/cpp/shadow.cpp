// The race and initialisation checks of shared memory.
#include "shadow.h"

#include <string.h>

#include <algorithm>

#include "machine.h"

namespace emu {

void SharedShadow::race(const Lane* lane, unsigned offset, const char* now, const char* before, unsigned other,
                        const void* pc) const {
  const Cluster* cluster = block_->cluster;
  ActorKind kind = other < cluster->thread_actors ? kThreadActor : cluster->actors[other - cluster->thread_actors].kind;
  const char* remedy = kind == kCopies                           ? "mbarrier_wait"
                       : kind == kWarpgroupReads                 ? "wgmma_wait and barrier"
                       : kind == kStores                         ? "tma_store_wait and barrier"
                       : other / 32 == lane->actor / 32          ? "__syncwarp or __syncthreads"
                       : own_thread(other) && !cluster->fine     ? "__syncthreads"
                       : own_thread(other) && cluster->size == 1 ? "__syncthreads or other barrier"
                                                                 : "barrier of the cluster";
  char who[128];
  describe_actor(cluster, other, who, sizeof(who));
  fail(lane, pc, "race on shared memory: %s offset %u, which %s %s with no %s in between", now, offset - kArenaStart,
       who, before, remedy);
}

void SharedShadow::reset(const Block* block, unsigned bytes, unsigned from) {
  block_ = block;
  first_actor_ = block->lanes[0].actor;
  end_actor_ = first_actor_ + 32 * block->warp_count;
  if (from == 0) {
    lists_.assign(1, Reader{});  // 0 ends a list
    free_ = 0;
  }
  if (bytes > 4 * words_.size()) {
    words_.resize((bytes + 1023) / 1024 * 256);
    if (!bytes_.empty()) bytes_.resize(4 * words_.size());
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
    if (bytes_.empty()) bytes_.resize(4 * words_.size());
    Cell* bytes_of_word = &bytes_[at / 4 * 4];
    if (!(word.flags & kSplit)) {
      std::fill_n(bytes_of_word, 4, word);
      if (word.flags & kList) {
        // The first byte keeps the list; the others get copies of their own.
        for (int i = 1; i < 4; ++i) {
          uint32_t* link = &bytes_of_word[i].readers;
          *link = 0;
          for (uint32_t from = word.readers; from != 0; from = lists_[from].next) {
            Reader copy = lists_[from];
            copy.next = 0;
            lists_.push_back(copy);
            uint32_t made = uint32_t(lists_.size() - 1);
            if (bytes_of_word[i].readers == 0) {
              bytes_of_word[i].readers = made;
            } else {
              uint32_t last = bytes_of_word[i].readers;
              while (lists_[last].next != 0) last = lists_[last].next;
              lists_[last].next = made;
            }
          }
        }
      }
      word.flags |= kSplit;
    }
    for (unsigned stop = std::min(end, at / 4 * 4 + 4); at < stop; ++at) visit(bytes_[at], at);
  }
}

// As `each`, but cells that are equal to the one before are made equal to what it became, unseen. `before` and `after`
// carry that one from call to call.
template <class Visit>
void SharedShadow::runs(unsigned offset, unsigned bytes, Cell& before, Cell& after, Visit visit) {
  each(offset, bytes, [&](Cell& cell, unsigned at) {
    if (memcmp(&cell, &before, sizeof(Cell)) == 0 && !((before.flags | after.flags) & kList)) {
      cell = after;
      return;
    }
    before = cell;
    visit(cell, at);
    after = cell;
  });
}

inline bool SharedShadow::met_write(const Lane* lane, const Cell& cell) const {
  return cell.write_time == 0 || cell.writer == lane->actor ||
         (cell.write_time <= block_->barrier_time && own_thread(cell.writer) && lane->block == block_);
}

bool SharedShadow::superseded(const Lane* lane, const Cell& cell) const {
  if (cell.flags & (kCrowd | kList)) return false;
  for (unsigned left = cell.readers; left != 0; left &= left - 1) {
    if (!knows(lane, 32 * cell.reader_warp + __builtin_ctz(left), cell.read_time)) return false;
  }
  return true;
}

void SharedShadow::check_state(const Lane* lane, const Cell& cell, unsigned offset, int access, const void* pc) const {
  const char* verb = access & kWrite ? "writes" : "reads";
  const Cluster* cluster = block_->cluster;
  bool by_thread = cell.writer < cluster->thread_actors;
  if (cell.flags & kInFlight) {
    char who[128];
    describe_actor(cluster, cell.writer, who, sizeof(who));
    if (!by_thread) {
      fail(lane, pc, "%s shared memory at offset %u, where %s is under way: no mbarrier_wait has met it", verb,
           offset - kArenaStart, who);
    }
    fail(lane, pc, "%s shared memory at offset %u, where a cp.async of %s is under way: no cp_async_wait has met it",
         verb, offset - kArenaStart, who);
  }
  if (cell.flags & kBarrier) {
    fail(lane, pc, "%s shared memory at offset %u, where an mbarrier lies", verb, offset - kArenaStart);
  }
  if (cell.write_time == 0) return;
  if (!met_write(lane, cell) && !knows(lane, cell.writer, cell.write_time) &&
      !((access & kAtomic) && (cell.flags & kAtomicWrite)))
    race(lane, offset, verb, "wrote", cell.writer, pc);
  if ((access & kAsynchronous) && by_thread && !knows_shown(lane, cell.writer, cell.write_time)) {
    char who[128];
    describe_actor(cluster, cell.writer, who, sizeof(who));
    fail(lane, pc,
         "%s, asynchronously, shared memory at offset %u, which %s wrote by ordinary stores: no fence_proxy_async lies "
         "in between",
         verb, offset - kArenaStart, who);
  }
}

void SharedShadow::note_read(const Lane* lane, Cell& cell, unsigned actor, uint32_t now) {
  unsigned warp = actor / 32, bit = 1u << actor % 32;
  uint16_t foreign = own_thread(actor) ? 0 : kForeignRead;
  // Earlier reads that this one is ordered after matter no more: what is ordered after this one is so after them.
  bool met = cell.read_time <= block_->barrier_time && !(cell.flags & kForeignRead) && lane->block == block_;
  if (cell.read_time == 0 || met || superseded(lane, cell)) {
    if (cell.read_time != 0) forget_readers(cell);
    cell.readers = bit;
    cell.reader_warp = uint16_t(warp);
    cell.flags = (cell.flags & ~kForeignRead) | foreign;
  } else if (!(cell.flags & (kList | kCrowd)) && cell.reader_warp == warp && cell.read_time == now) {
    cell.readers |= bit;
  } else if (!(cell.flags & kCrowd)) {
    auto push = [&](uint16_t of, uint32_t lanes, uint32_t time, uint32_t next) {
      uint32_t at = free_;
      if (at != 0) {
        free_ = lists_[at].next;
      } else {
        at = uint32_t(lists_.size());
        lists_.push_back({});
      }
      lists_[at] = {time, lanes, next, of};
      return at;
    };
    if (!(cell.flags & kList)) {
      cell.readers = push(cell.reader_warp, cell.readers, cell.read_time, 0);
      cell.flags |= kList;
    }
    cell.flags |= foreign;
    uint32_t at = cell.readers;
    while (at != 0 && !(lists_[at].warp == warp && (lists_[at].lanes == bit || lists_[at].time == now)))
      at = lists_[at].next;
    if (at != 0) {
      lists_[at].lanes |= bit;
      lists_[at].time = now;
    } else {
      cell.readers = push(uint16_t(warp), bit, now, cell.readers);
    }
  }
  cell.read_time = now;
}

// The same while threads have synchronised by __syncthreads and __syncwarp alone: who read matters in one warp only.
inline void SharedShadow::note_plain_read(const Lane* lane, Cell& cell, uint32_t now) {
  unsigned warp = lane->actor / 32, bit = 1u << lane->lane;
  if (cell.read_time <= block_->barrier_time || (cell.reader_warp == warp && superseded(lane, cell))) {
    cell.readers = bit;
    cell.reader_warp = uint16_t(warp);
    cell.flags &= ~kCrowd;
  } else if (cell.reader_warp == warp) {
    cell.readers |= bit;
  } else {
    cell.flags |= kCrowd;
  }
  cell.read_time = now;
}

void SharedShadow::forget_readers(Cell& cell) {
  if (cell.flags & kList) {
    uint32_t last = cell.readers;
    while (lists_[last].next != 0) last = lists_[last].next;
    lists_[last].next = free_;
    free_ = cell.readers;
  }
  cell.readers = 0;
  cell.read_time = 0;
  cell.flags &= ~(kList | kCrowd | kForeignRead);
}

void SharedShadow::check_readers(const Lane* lane, const Cell& cell, unsigned offset, const void* pc) const {
  if (cell.read_time == 0) return;
  if (cell.read_time <= block_->barrier_time && !(cell.flags & kForeignRead) && lane->block == block_) return;
  auto check = [&](unsigned warp, uint32_t lanes, uint32_t time) {
    for (; lanes != 0; lanes &= lanes - 1) {
      unsigned other = 32 * warp + __builtin_ctz(lanes);
      if (!knows(lane, other, time)) race(lane, offset, "writes", "read", other, pc);
    }
  };
  if (cell.flags & kCrowd) {
    if (cell.reader_warp != lane->actor / 32) {
      race(lane, offset, "writes", "read", 32 * cell.reader_warp + __builtin_ctz(cell.readers), pc);
    }
    fail(lane, pc,
         "race on shared memory: writes offset %u, which several warps have read since the last __syncthreads",
         offset - kArenaStart);
  }
  if (!(cell.flags & kList)) return check(cell.reader_warp, cell.readers, cell.read_time);
  for (uint32_t at = cell.readers; at != 0; at = lists_[at].next) {
    check(lists_[at].warp, lists_[at].lanes, lists_[at].time);
  }
}

inline void SharedShadow::visit(Lane* lane, Cell& cell, unsigned offset, int access, const void* pc) {
  bool plain = !(cell.flags & (kInFlight | kBarrier)) && !(access & kAsynchronous) && met_write(lane, cell);
  if (__builtin_expect(!plain, 0)) check_state(lane, cell, offset, access, pc);
  const uint32_t now = block_->cluster->time;
  if (access & kRead) {
    if (cell.write_time == 0) {
      fail(lane, pc, "reads shared memory at offset %u that nothing has written yet (never, or a barrier is missing)",
           offset - kArenaStart);
    }
    // An atomic (or volatile) read may meet a write: that is what it is for.
    if (!(access & (kWrite | kAtomic))) {
      if (block_->cluster->fine) {
        note_read(lane, cell, lane->actor, now);
      } else {
        note_plain_read(lane, cell, now);
      }
    }
  }
  if (access & kWrite) {
    if (cell.read_time != 0) {
      check_readers(lane, cell, offset, pc);
      forget_readers(cell);
    }
    cell.write_time = now;
    cell.writer = uint16_t(lane->actor);
    cell.flags = (cell.flags & kSplit) | (access & kAtomic ? kAtomicWrite : 0);
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
  uint32_t now = block_->cluster->time;
  each(offset, bytes, [&](Cell& cell, unsigned) {
    cell.flags &= ~kInFlight;
    cell.write_time = now;
    cell.writer = uint16_t(lane->actor);
  });
}

void SharedShadow::bulk_issued(Lane* lane, unsigned offset, unsigned bytes, unsigned actor, const void* pc) {
  Cell before, after;
  memset(&before, 0xff, sizeof(before));
  runs(offset, bytes, before, after, [&](Cell& cell, unsigned at) {
    visit(lane, cell, at, kWrite | kAsynchronous, pc);
    cell.flags |= kInFlight;
    cell.writer = uint16_t(actor);
  });
}

void SharedShadow::bulk_landed(unsigned offset, unsigned bytes, unsigned actor, uint32_t time) {
  each(offset, bytes, [&](Cell& cell, unsigned) {
    cell.flags &= ~kInFlight;
    cell.write_time = time;
    cell.writer = uint16_t(actor);
  });
}

void SharedShadow::units_read(Lane* const* lanes, unsigned lane_count, const unsigned* offsets, unsigned count,
                              unsigned actor, uint32_t time, const void* pc) {
  Cell before, after;
  memset(&before, 0xff, sizeof(before));
  uint32_t checked_time = 0;
  unsigned checked_writer = 0;
  for (unsigned i = 0; i < count; ++i) {
    runs(offsets[i], kUnitBytes, before, after, [&](Cell& cell, unsigned at) {
      bool same = cell.write_time == checked_time && cell.writer == checked_writer;
      if (!same || cell.write_time == 0 || (cell.flags & (kInFlight | kBarrier))) {
        bool copied = cell.writer >= block_->cluster->thread_actors;
        for (unsigned l = 0; l < lane_count; ++l) {
          // Of copies, lanes that know the same know the same.
          if (copied && l > 0 && lanes[l]->far == lanes[l - 1]->far) continue;
          check_state(lanes[l], cell, at, kRead | kAsynchronous, pc);
        }
        if (cell.write_time == 0) {
          fail(lanes[0], pc, "reads, asynchronously, shared memory at offset %u that nothing has written yet",
               at - kArenaStart);
        }
        checked_time = cell.write_time;
        checked_writer = cell.writer;
      }
      note_read(lanes[0], cell, actor, time);
    });
  }
}

void SharedShadow::set_barrier(Lane* lane, unsigned offset, const void* pc) {
  each(offset, 8, [&](Cell& cell, unsigned at) {
    visit(lane, cell, at, kWrite, pc);
    cell.flags |= kBarrier;
  });
}

}  // namespace emu
