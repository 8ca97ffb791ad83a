// The race check of global memory.
#include "global_shadow.h"

#include <stdio.h>
#include <sys/mman.h>

#include <algorithm>

#include "machine.h"

namespace emu {

Sparse::Sparse(size_t bytes) : data_(nullptr), bytes_(bytes) {
  void* made = mmap(nullptr, std::max<size_t>(1, bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made != MAP_FAILED) data_ = static_cast<unsigned char*>(made);
}

Sparse::Sparse(Sparse&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Sparse::~Sparse() {
  if (data_ != nullptr) munmap(data_, std::max<size_t>(1, bytes_));
}

GlobalShadow::GlobalShadow(uint64_t begin, uint64_t bytes, unsigned unit, bool shared)
    : begin_(begin),
      shift_(unsigned(__builtin_ctz(unit))),
      shared_(shared),
      cells_(((bytes >> shift_) + 1) * sizeof(Cell)) {
  for (Stripe& stripe : stripes_) stripe.records.resize(1);  // 0 stands for none
}

GlobalShadow::Record& GlobalShadow::record_of(Stripe& stripe, Cell& cell) {
  if (cell.record == 0) {
    if (stripe.free.empty()) {
      cell.record = uint32_t(stripe.records.size());
      stripe.records.emplace_back();
    } else {
      cell.record = stripe.free.back();
      stripe.free.pop_back();
    }
  }
  return stripe.records[cell.record];
}

void GlobalShadow::forget(Stripe& stripe, Cell& cell) {
  cell.touch.kind = kNone;
  if (cell.record == 0) return;
  stripe.records[cell.record] = Record();
  stripe.free.push_back(cell.record);
  cell.record = 0;
}

// What was there before counts for nobody any more once `touch` has come, which knows of it.
static bool replaced(uint8_t before, uint8_t now, uint8_t strong_read) {
  return before == now || before == strong_read;
}

void GlobalShadow::note(Lane* lane, Stripe& stripe, Cell& cell, Kind kind) {
  Cluster* cluster = lane->block->cluster;
  Touch now = {cluster->time, cluster->number, 1u << lane->actor % 32, uint16_t(lane->actor / 32), kind};
  auto joins = [&](Touch& touch) {
    if (touch.kind != kind || touch.time != now.time || touch.cluster != now.cluster || touch.warp != now.warp)
      return false;
    touch.lanes |= now.lanes;
    return true;
  };
  auto ended = [&](const Touch& touch) {
    if (!replaced(touch.kind, kind, kStrongRead)) return false;
    for (unsigned left = touch.lanes; left != 0; left &= left - 1) {
      if (!ordered(lane, touch.cluster, 32 * touch.warp + __builtin_ctz(left), touch.time, false)) return false;
    }
    return true;
  };
  if (cell.touch.kind == kNone) {
    cell.touch = now;
    return;
  }
  int count = cell.record == 0 ? 0 : stripe.records[cell.record].count;
  if (count == 0) {
    if (joins(cell.touch)) return;
    if (ended(cell.touch)) {
      cell.touch = now;
      return;
    }
  }
  Record& record = record_of(stripe, cell);
  if (count > 0 && joins(record.more[count - 1])) return;
  count = int(std::remove_if(record.more, record.more + count, ended) - record.more);
  if (count == kMore) {
    cell.touch = record.more[0];
    std::copy(record.more + 1, record.more + kMore, record.more);
    --count;
  }
  record.more[count] = now;
  record.count = count + 1;
}

bool GlobalShadow::check_touches(Lane* lane, Stripe& stripe, Cell& cell, Kind kind, bool stores, Clash& clash) {
  if (cell.touch.kind == kNone) return true;
  Record* record = cell.record == 0 ? nullptr : &stripe.records[cell.record];
  bool covered = false;  // by a later atomic that this access is ordered after
  for (int i = record == nullptr ? 0 : record->count; i >= 0; --i) {
    const Touch& touch = i == 0 ? cell.touch : record->more[i - 1];
    if (touch.kind == kStrongWrite && (kind == kStrongWrite || kind == kStrongRead || (kind == kNone && covered)))
      continue;
    if (touch.kind == kStrongRead && kind != kNone) continue;
    if (touch.kind == kPlainRead && (kind == kPlainRead || kind == kStrongRead)) continue;
    for (unsigned left = touch.lanes; left != 0; left &= left - 1) {
      unsigned actor = 32 * touch.warp + __builtin_ctz(left);
      if (ordered(lane, touch.cluster, actor, touch.time, stores)) continue;
      clash.before = touch.kind == kStrongWrite  ? "changed by an atomic"
                     : touch.kind == kStrongRead ? "read by an atomic"
                                                 : "read";
      clash.cluster = touch.cluster;
      clash.actor = actor;
      return false;
    }
    covered |= touch.kind == kStrongWrite;
  }
  return true;
}

bool GlobalShadow::check(Lane* lane, Stripe& stripe, Cell& cell, unsigned mask, int access, Clash& clash) {
  bool stores = access & kWrite;
  const Cluster* cluster = lane->block->cluster;
  if (cell.time != 0 && (cell.bytes & mask)) {
    bool same = cell.actor == lane->actor && cell.cluster == cluster->number;
    bool met = cell.stored ? same && stores && (access & kAsynchronous)
                           : same || ordered(lane, cell.cluster, cell.actor, cell.time, stores);
    if (!met || ((access & kAsynchronous) && !stores && !cell.stored &&
                 !ordered_shown(lane, cell.cluster, cell.actor, cell.time))) {
      clash.before = cell.stored ? "wrote by a tma_store" : "wrote";
      clash.cluster = cell.cluster;
      clash.actor = cell.actor;
      clash.proxy = met;
      return false;
    }
  }
  // In the terms of the memory model kNone, which clashes with all, is an ordinary store.
  Kind kind = !(access & kAtomic) ? (stores ? kNone : kPlainRead) : stores ? kStrongWrite : kStrongRead;
  if (!check_touches(lane, stripe, cell, kind, stores, clash)) return false;
  if (kind != kNone) {
    note(lane, stripe, cell, kind);
    return true;
  }
  forget(stripe, cell);
  cell.time = cluster->time;
  cell.cluster = cluster->number;
  cell.actor = uint16_t(lane->actor);
  cell.bytes = uint8_t(mask);
  cell.stored = (access & kAsynchronous) != 0;
  return true;
}

void GlobalShadow::access(Lane* lane, uint64_t address, unsigned bytes, int access, const Buffer& buffer,
                          const void* pc) {
  uint64_t offset = address - begin_, end = offset + bytes;
  const unsigned unit = 1u << shift_;
  Clash clash = {};
  while (offset < end) {
    // A page at a time: it has one stripe.
    uint64_t stop = std::min(end, (offset | 4095) + 1);
    Stripe& own = stripe(offset);
    if (shared_) {
      while (own.busy.test_and_set(std::memory_order_acquire)) {
      }
    }
    bool fine = true;
    while (fine && offset < stop) {
      unsigned within = unsigned(offset & (unit - 1)),
               some = std::min<unsigned>(unit - within, unsigned(stop - offset));
      fine = check(lane, own, cell(offset >> shift_), ((1u << some) - 1) << within, access, clash);
      if (!fine) clash.offset = offset;
      offset += some;
    }
    if (shared_) own.busy.clear(std::memory_order_release);
    if (!fine) fail_at(lane, clash, access, buffer, pc);
  }
}

void GlobalShadow::leave(uint64_t address, const World& world, bool replaces) {
  uint64_t offset = address - begin_;
  Stripe& own = stripe(offset);
  if (shared_) {
    while (own.busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  Cell& at = cell(offset >> shift_);
  if (at.record != 0 || !world.empty()) {
    Record& record = record_of(own, at);
    if (replaces) record.left = World();
    record.left.join(world);
  }
  if (shared_) own.busy.clear(std::memory_order_release);
}

World GlobalShadow::find(uint64_t address) {
  uint64_t offset = address - begin_;
  Stripe& own = stripe(offset);
  World found;
  if (shared_) {
    while (own.busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  if (uint32_t record = cell(offset >> shift_).record) found = own.records[record].left;
  if (shared_) own.busy.clear(std::memory_order_release);
  return found;
}

void GlobalShadow::fail_at(Lane* lane, const Clash& clash, int access, const Buffer& buffer, const void* pc) const {
  const Launch* launch = lane->worker->launch;
  Cluster* cluster = lane->block->cluster;
  unsigned long long offset = begin_ + clash.offset - buffer.address;
  const char* verb = !(access & kWrite) ? "reads" : access & kAtomic ? "updates" : "writes";
  unsigned of_block = 32 * lane->block->warp_count, rank = clash.actor / of_block, thread = clash.actor % of_block;
  const uint32_t *shape = launch->cluster, *size = launch->block;
  unsigned across[2] = {launch->grid[0] / shape[0], launch->grid[1] / shape[1]};
  unsigned x = clash.cluster % across[0] * shape[0] + rank % shape[0];
  unsigned y = clash.cluster / across[0] % across[1] * shape[1] + rank / shape[0] % shape[1];
  unsigned z = clash.cluster / across[0] / across[1] * shape[2] + rank / shape[0] / shape[1];
  char who[160];
  snprintf(who, sizeof(who), "block (%u, %u, %u), thread (%u, %u, %u)", x, y, z, thread % size[0],
           thread / size[0] % size[1], thread / size[0] / size[1]);
  if (clash.proxy) {
    fail(lane, pc,
         "%s, asynchronously, byte offset %llu of %s, which %s %s by ordinary stores: no fence_proxy_async lies in "
         "between",
         verb, offset, buffer.name, who, clash.before);
  }
  bool own = clash.cluster == cluster->number && rank == lane->block->rank;
  fail(lane, pc, "race on global memory: %s byte offset %llu of %s, which %s %s with no %s in between", verb, offset,
       buffer.name, who, clash.before,
       own ? "__syncthreads or other barrier" : "release and acquire by atomics and fences, nor meeting of the grid,");
}

}  // namespace emu
