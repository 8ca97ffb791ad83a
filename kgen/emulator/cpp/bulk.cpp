// Bulk asynchronous copies: TMA loads, to one block or several, TMA stores, copies without a tensor map; and
// asynchronous stores to a block of the cluster.
//
// A load's bytes arrive on an mbarrier when it lands; a store reads its source when it lands, which its thread waits
// for by group. When that is, Options.async_mode says: at once, as late as somebody's waiting allows, or either at
// random.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "float_types.h"
#include "machine.h"

namespace emu {
namespace {

constexpr unsigned kTileAlignment = 128;

// A row of a box: its elements along the contiguous axis, and the part of them within the tensor.
struct Row {
  const unsigned char* global;  // of the first element within
  unsigned shared;              // offset of the row in the box, before swizzling
  unsigned skip, bytes;         // from the row's start to the first byte within; bytes within (0: none)
};

template <class Visit>
void each_row(const TensorMap& map, const int* at, Visit visit) {
  unsigned rows = 1;
  for (unsigned i = 1; i < map.rank; ++i) rows *= map.box[i];
  int64_t first = std::max<int64_t>(0, -int64_t(at[0]));
  int64_t last = std::min<int64_t>(map.box[0], int64_t(map.sizes[0]) - at[0]);
  unsigned row_bytes = map.box[0] * map.element_bytes;
  for (unsigned number = 0; number < rows; ++number) {
    unsigned left = number;
    uint64_t address = map.address + uint64_t((at[0] + first) * int64_t(map.element_bytes));
    bool within = first < last;
    for (unsigned i = 1; i < map.rank; ++i) {
      int64_t coordinate = int64_t(at[i]) + left % map.box[i];
      left /= map.box[i];
      within &= coordinate >= 0 && coordinate < int64_t(map.sizes[i]);
      address += uint64_t(coordinate) * map.strides[i - 1];
    }
    Row row = {reinterpret_cast<const unsigned char*>(address), number * row_bytes, 0, 0};
    if (within) {
      row.skip = unsigned(first) * map.element_bytes;
      row.bytes = unsigned(last - first) * map.element_bytes;
    }
    visit(row);
  }
}

// Where TMA puts a byte of shared memory: the 16-byte units of the swizzle's span change places by the address's bits
// from 7 on.
unsigned swizzled(unsigned offset, unsigned swizzle) {
  return swizzle == 0 ? offset : offset ^ ((offset >> 3) & (swizzle - kUnitBytes));
}

// Calls visit(offset in shared memory, offset in the row, bytes) for the pieces of `bytes` from `skip` of a row that
// starts at `start`.
template <class Visit>
void each_piece(unsigned start, unsigned skip, unsigned bytes, unsigned swizzle, Visit visit) {
  if (swizzle == 0) return visit(start + skip, skip, bytes);
  for (unsigned done = skip, end = skip + bytes; done < end;) {
    unsigned piece = std::min(kUnitBytes - (start + done) % kUnitBytes, end - done);
    visit(swizzled(start + done, swizzle), done, piece);
    done += piece;
  }
}

unsigned box_bytes(const TensorMap& map) {
  unsigned bytes = map.element_bytes;
  for (unsigned i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

void check_map(Lane* lane, const TensorMap& map, unsigned rank, const char* what, const void* pc) {
  if (map.magic != kTensorMapMagic)
    fail(lane, pc, "%s: the TensorMap is none: a kernel parameter of that type is", what);
  if (map.rank != rank) fail(lane, pc, "%s: %u coordinates for a tensor map of %u axes", what, rank, map.rank);
}

void round_elements(unsigned char* at, unsigned bytes) {
  for (unsigned char* end = at + bytes; at < end; at += 4) {
    uint32_t bits;
    memcpy(&bits, at, 4);
    bits = round_to_tf32(bits);
    memcpy(at, &bits, 4);
  }
}

void land(const Bulk& bulk) {
  Lane* lane = bulk.lane;
  Worker* worker = lane->worker;
  Cluster* cluster = lane->block->cluster;
  for (unsigned rank = 0; rank < cluster->size; ++rank) {
    if (!(bulk.blocks >> rank & 1)) continue;
    Block& block = worker->blocks[cluster->first + rank];
    unsigned char* to = block.arena;
    if (bulk.map.rank == 0) {
      memcpy(to + bulk.destination, bulk.source ? static_cast<const void*>(bulk.source) : bulk.words, bulk.bytes);
    } else {
      unsigned row_bytes = bulk.map.box[0] * bulk.map.element_bytes;
      each_row(bulk.map, bulk.at, [&](const Row& row) {
        unsigned start = bulk.destination + row.shared;
        if (row.bytes < row_bytes) {
          each_piece(start, 0, row_bytes, bulk.map.swizzle,
                     [&](unsigned offset, unsigned, unsigned bytes) { memset(to + offset, 0, bytes); });
        }
        if (row.bytes == 0) return;
        each_piece(start, row.skip, row.bytes, bulk.map.swizzle, [&](unsigned offset, unsigned within, unsigned bytes) {
          memcpy(to + offset, row.global + (within - row.skip), bytes);
          if (bulk.map.rounds) round_elements(to + offset, bytes);
        });
      });
    }
    MBarrier& barrier = mbarrier_at(lane, block, bulk.barrier, "a bulk copy", bulk.pc);
    if (worker->launch->checks) {
      uint32_t time = cluster->time++;
      block.shadow.bulk_landed(bulk.destination, bulk.bytes, barrier.actor, time);
      barrier.arrivals.add(barrier.actor, time);
    }
    bytes_arrived(lane, barrier, bulk.bytes, bulk.pc);
  }
}

// Checks and issues a load, whose global side is fine.
void issue(Bulk& bulk, unsigned destination, unsigned barrier_address, unsigned alignment, const char* what) {
  Lane* lane = bulk.lane;
  const void* pc = bulk.pc;
  Cluster* cluster = lane->block->cluster;
  Worker* worker = lane->worker;
  bulk.destination = destination & 0xffffff;
  bulk.barrier = barrier_address & 0xffffff;
  if (destination >> 24 != barrier_address >> 24) {
    fail(lane, pc, "%s: the destination lies in block %u of the cluster, the mbarrier in block %u", what,
         destination >> 24, barrier_address >> 24);
  }
  if (bulk.blocks == 0) bulk.blocks = 1u << (destination >> 24);
  for (unsigned left = bulk.blocks; left != 0; left &= left - 1) {
    unsigned rank = __builtin_ctz(left);
    if (rank >= cluster->size) {
      fail(lane, pc, "%s: the mask 0x%x names block %u of a cluster of %u", what, bulk.blocks, rank, cluster->size);
    }
    Block& block = block_at(lane, rank << 24 | bulk.destination, bulk.bytes, alignment, what, pc);
    block_at(lane, rank << 24 | bulk.barrier, 8, 8, what, pc);
    MBarrier& barrier = mbarrier_at(lane, block, bulk.barrier, what, pc);
    if (!barrier.shown) {
      fail(lane, pc,
           "%s: the mbarrier at offset %u has not been shown to asynchronous copies: mbarrier_init_fence is missing "
           "after "
           "mbarrier_init",
           what, bulk.barrier - kArenaStart);
    }
    if (worker->launch->checks) block.shadow.bulk_issued(lane, bulk.destination, bulk.bytes, barrier.actor, pc);
    memset(block.arena + bulk.destination, 0xff, bulk.bytes);
  }
  if (bulk.map.rank != 0 || bulk.source) {
    ++worker->counters.bulk_copies;
    worker->counters.bulk_bytes += bulk.bytes;
  }
  int mode = worker->launch->async_mode;
  if (mode == kEager || (mode == kRandom && (worker->random() & 1))) {
    land(bulk);
  } else {
    worker->flying.push_back(bulk);
  }
}

// A box begins at whole 16 bytes along the contiguous axis; a GPU calls anything else an illegal instruction.
void check_start(Lane* lane, const TensorMap& map, const int* at, const char* what, const void* pc) {
  if (at[0] * int(map.element_bytes) % 16 != 0) {
    fail(lane, pc, "%s: coordinate 0 is %d, of %u bytes each; expected a multiple of 16 bytes", what, at[0],
         map.element_bytes);
  }
}

// Makes reductions of this lane that have read their source.
void add_up(Lane* lane) {
  for (const Store& made : lane->additions)
    for (size_t i = 0; i < made.values.size(); ++i) add_to(lane->worker, made.sums + i, made.values[i]);
  lane->additions.clear();
}

// Writes what a store's box holds within the tensor; of a reduction reads the source alone.
void land_store(Lane* lane, Store& store) {
  if (store.done) return;
  store.done = true;
  const unsigned char* from = lane->block->arena;
  if (store.sums) {
    memcpy(store.values.data(), from + store.source, store.values.size() * 4);
    lane->additions.push_back(store);
    return;
  }
  each_row(store.map, store.at, [&](const Row& row) {
    if (row.bytes == 0) return;
    each_piece(store.source + row.shared, row.skip, row.bytes, store.map.swizzle,
               [&](unsigned offset, unsigned within, unsigned bytes) {
                 memcpy(const_cast<unsigned char*>(row.global) + (within - row.skip), from + offset, bytes);
               });
  });
}

void store(Lane* lane, const TensorMap& map, unsigned source, const int* at, const void* pc) {
  const char* what = "tma_store";
  Worker* worker = lane->worker;
  Block* block = lane->block;
  Cluster* cluster = block->cluster;
  Store made = {pc, map, {}, source & 0xffffff, 0, false, nullptr, {}};
  std::copy_n(at, map.rank, made.at);
  check_start(lane, map, at, what, pc);
  for (unsigned i = 0; i < map.rank; ++i) {
    if (at[i] < 0) {
      fail(lane, pc, "%s: coordinate %u is %d; only loads may begin before the start of a tensor", what, i, at[i]);
    }
  }
  unsigned bytes = box_bytes(map);
  if (&block_at(lane, source, bytes, kTileAlignment, what, pc) != block) {
    fail(lane, pc, "%s: the source lies in block %u of the cluster, not in this one", what, source >> 24);
  }
  if (worker->launch->checks) {
    cluster->fine = true;
    if (lane->store_actor == 0) lane->store_actor = new_actor(cluster, kStores, block, lane->number);
    made.time = cluster->time++;
    std::vector<unsigned> units;
    each_row(map, at, [&](const Row& row) {
      if (row.bytes == 0) return;
      check_buffer(lane, reinterpret_cast<uintptr_t>(row.global), row.bytes, kWrite | kAsynchronous, pc);
      each_piece(made.source + row.shared, row.skip, row.bytes, map.swizzle,
                 [&](unsigned offset, unsigned, unsigned piece) {
                   for (unsigned at = offset / kUnitBytes * kUnitBytes; at < offset + piece; at += kUnitBytes)
                     units.push_back(at);
                 });
    });
    block->shadow.units_read(&lane, 1, units.data(), unsigned(units.size()), lane->store_actor, made.time, pc);
  }
  ++worker->counters.bulk_copies;
  worker->counters.bulk_bytes += bytes;
  lane->stores.push_back(made);
  int mode = worker->launch->async_mode;
  if (mode == kEager || (mode == kRandom && (worker->random() & 1))) land_store(lane, lane->stores.back());
}

}  // namespace

bool land_one(Worker* worker) {
  if (worker->flying.empty()) return false;
  std::swap(worker->flying[worker->random() % worker->flying.size()], worker->flying.back());
  Bulk bulk = worker->flying.back();
  worker->flying.pop_back();
  land(bulk);
  return true;
}

void end_bulk(Lane* lane) {
  add_up(lane);
  if (lane->stores.empty()) return;
  fail(lane, lane->stores[0].pc,
       "the thread ends while its tma_store may still read shared memory: tma_store_commit and tma_store_wait<0> are "
       "missing");
}

void end_block_bulk(Lane* lane) {
  Block* block = lane->block;
  for (const Bulk& bulk : lane->worker->flying) {
    if (bulk.lane->block->cluster != block->cluster || !(bulk.blocks >> block->rank & 1)) continue;
    fail(bulk.lane, bulk.pc, "block (%u, %u, %u) ends while this copy to offset %u of its shared memory is under way",
         block->index[0], block->index[1], block->index[2], bulk.destination - kArenaStart);
  }
  for (const MBarrier& barrier : block->mbarriers) {
    if (barrier.bytes == 0) continue;
    fail(lane, barrier.pc,
         "the block ends while the mbarrier at offset %u, in phase %u, %s %lld bytes %s: copies and "
         "mbarrier_arrive_expect "
         "disagree",
         barrier.offset - kArenaStart, barrier.phase, barrier.bytes > 0 ? "still expects" : "has had",
         (long long)(barrier.bytes > 0 ? barrier.bytes : -barrier.bytes),
         barrier.bytes > 0 ? "that no copy brings" : "that it did not expect");
  }
}

}  // namespace emu

using namespace emu;

extern "C" {

void emu_tma_prefetch(const void* map) {
  if (static_cast<const TensorMap*>(map)->magic != kTensorMapMagic)
    fail(current, EMU_PC, "tma_prefetch: the TensorMap is none: a kernel parameter of that type is");
}

void emu_tma_load(unsigned destination, const void* map, unsigned barrier, int mask, int rank, int c0, int c1, int c2,
                  int c3, int c4) {
  Lane* lane = current;
  const char* what = mask == 0 ? "tma_load" : "tma_load_multicast";
  Bulk bulk = {lane, EMU_PC,        *static_cast<const TensorMap*>(map), nullptr, {c0, c1, c2, c3, c4}, 0, 0,
               0,    unsigned(mask)};
  check_map(lane, bulk.map, unsigned(rank), what, bulk.pc);
  check_start(lane, bulk.map, bulk.at, what, bulk.pc);
  bulk.bytes = box_bytes(bulk.map);
  if (lane->worker->launch->checks) {
    each_row(bulk.map, bulk.at, [&](const Row& row) {
      if (row.bytes == 0) return;
      check_buffer(lane, reinterpret_cast<uintptr_t>(row.global), row.bytes, kRead | kAsynchronous, bulk.pc);
    });
  }
  issue(bulk, destination, barrier, kTileAlignment, what);
}

void emu_bulk_load(unsigned destination, const void* source, int bytes, unsigned barrier) {
  Lane* lane = current;
  auto from = static_cast<const unsigned char*>(source);
  Bulk bulk = {lane, EMU_PC, {}, from, {}, 0, unsigned(bytes), 0, 0};
  if (bytes < 0 || bytes % kUnitBytes != 0) {
    fail(lane, bulk.pc, "bulk_load: %d bytes, which is no multiple of %u", bytes, kUnitBytes);
  }
  if (reinterpret_cast<uintptr_t>(source) % kUnitBytes != 0) {
    fail(lane, bulk.pc, "bulk_load: the source %p is misaligned, it must be a multiple of %u", source, kUnitBytes);
  }
  if (bytes == 0) return;
  if (lane->worker->launch->checks)
    check_buffer(lane, reinterpret_cast<uintptr_t>(source), unsigned(bytes), kRead | kAsynchronous, bulk.pc);
  issue(bulk, destination, barrier, kUnitBytes, "bulk_load");
}

void emu_cluster_store_async(unsigned address, int bytes, uint64_t low, uint64_t high, unsigned barrier) {
  Lane* lane = current;
  const char* what = "store_cluster_async";
  Bulk bulk = {lane, EMU_PC, {}, nullptr, {}, 0, unsigned(bytes), 0, 0, {low, high}};
  Block& block = block_at(lane, barrier, 8, 8, what, bulk.pc);
  MBarrier& counted = mbarrier_at(lane, block, barrier & 0xffffff, what, bulk.pc);
  // Who waits for the bytes also knows what this thread has done before.
  if (lane->worker->launch->checks) counted.arrivals.add(lane);
  issue(bulk, address, barrier, unsigned(bytes), what);
}

void emu_tma_store(const void* map, unsigned source, int rank, int c0, int c1, int c2, int c3, int c4) {
  const int at[] = {c0, c1, c2, c3, c4};
  check_map(current, *static_cast<const TensorMap*>(map), unsigned(rank), "tma_store", EMU_PC);
  store(current, *static_cast<const TensorMap*>(map), source, at, EMU_PC);
}

void emu_bulk_add_f32(float* destination, unsigned source, int bytes) {
  Lane* lane = current;
  const char* what = "bulk_add_f32";
  const void* pc = EMU_PC;
  Worker* worker = lane->worker;
  Block* block = lane->block;
  if (bytes < 0 || bytes % kUnitBytes != 0) fail(lane, pc, "%s: %d bytes, which is no multiple of %u", what, bytes, kUnitBytes);
  if (reinterpret_cast<uintptr_t>(destination) % kUnitBytes != 0) {
    fail(lane, pc, "%s: the destination %p is misaligned, it must be a multiple of %u", what,
         static_cast<void*>(destination), kUnitBytes);
  }
  if (&block_at(lane, source, unsigned(bytes), kUnitBytes, what, pc) != block) {
    fail(lane, pc, "%s: the source lies in block %u of the cluster, not in this one", what, source >> 24);
  }
  Store made = {pc, {}, {}, source & 0xffffff, 0, false, destination, std::vector<float>(unsigned(bytes) / 4)};
  if (worker->launch->checks) {
    Cluster* cluster = block->cluster;
    cluster->fine = true;
    if (lane->store_actor == 0) lane->store_actor = new_actor(cluster, kStores, block, lane->number);
    made.time = cluster->time++;
    std::vector<unsigned> units;
    for (int at = 0; at < bytes; at += int(kUnitBytes)) units.push_back(made.source + unsigned(at));
    block->shadow.units_read(&lane, 1, units.data(), unsigned(units.size()), lane->store_actor, made.time, pc);
    for (int i = 0; i < bytes / 4; ++i) check_addition(lane, destination + i, pc);
  }
  ++worker->counters.bulk_copies;
  worker->counters.bulk_bytes += unsigned(bytes);
  lane->stores.push_back(made);
  int mode = worker->launch->async_mode;
  if (mode == kEager || (mode == kRandom && (worker->random() & 1))) {
    land_store(lane, lane->stores.back());
    add_up(lane);
  }
}

void emu_tma_store_commit() { current->store_groups.push_back(current->stores.size()); }

void emu_tma_store_wait(int pending) {
  Lane* lane = current;
  if (lane->store_groups.size() <= size_t(pending)) return;
  size_t closed = lane->store_groups.size() - pending, end = lane->store_groups[closed - 1];
  for (size_t i = 0; i < end; ++i) land_store(lane, lane->stores[i]);
  if (end > 0 && lane->worker->launch->checks) acquire(lane, clock_of(lane->store_actor, lane->stores[end - 1].time));
  lane->stores.erase(lane->stores.begin(), lane->stores.begin() + end);
  lane->store_groups.erase(lane->store_groups.begin(), lane->store_groups.begin() + closed);
  for (size_t& group : lane->store_groups) group -= end;
}

void emu_tma_store_complete() {
  emu_tma_store_wait(0);
  add_up(current);
}

void emu_fence_proxy_async() {
  Lane* lane = current;
  Block* block = lane->block;
  for (MBarrier& barrier : block->mbarriers) barrier.shown |= barrier.init_actor == lane->actor;
  block->cluster->fine = true;
  if (!lane->worker->launch->checks) return;
  fence_proxy(lane);
}

void emu_fence_proxy_async_global() {
  if (current->worker->launch->checks) fence_proxy_global(current);
}
}
