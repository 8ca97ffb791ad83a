// Shared memory, asynchronous copies and matrix moves.
#include <string.h>

#include <algorithm>

#include "collectives.h"

namespace emu {

// Whether `lane` has met a thread of `block`, directly or through others.
static bool has_started(const Lane* lane, const Block& block) {
  for (const Lane& other : block.lanes) {
    if (knows(lane, other.actor, kStarted)) return true;
  }
  return false;
}

Block& block_at(Lane* lane, unsigned address, unsigned bytes, unsigned alignment, const char* what, const void* pc) {
  Cluster* cluster = lane->block->cluster;
  unsigned rank = address >> 24, offset = address & 0xffffff;
  if (__builtin_expect(rank >= cluster->size, 0)) {
    fail(lane, pc, "%s: shared address 0x%x names block %u of a cluster of %u", what, address, rank, cluster->size);
  }
  Block& block = lane->worker->blocks[cluster->first + rank];
  if (__builtin_expect(offset < kArenaStart || offset + bytes > block.static_end, 0)) {
    fail(lane, pc, "%s of %u bytes out of bounds of shared memory: offset %d, the block has %u bytes", what, bytes,
         int(offset) - int(kArenaStart), block.static_end - kArenaStart);
  }
  if (__builtin_expect(offset % alignment != 0, 0)) {
    fail(lane, pc, "%s: shared offset %u is misaligned, it must be a multiple of %u", what, offset - kArenaStart,
         alignment);
  }
  if (__builtin_expect(&block != lane->block, 0) && lane->worker->launch->checks && !has_started(lane, block)) {
    fail(lane, pc, "%s: block %u of the cluster may not have started yet; a cluster_sync is missing before", what,
         rank);
  }
  if (__builtin_expect(block.exited == block.thread_count, 0)) {
    fail(lane, pc, "%s: block %u of the cluster has ended, and with it its shared memory; a cluster_sync is missing",
         what, rank);
  }
  return block;
}

unsigned char* shared_pointer(Lane* lane, unsigned address, unsigned bytes, const char* what, const void* pc) {
  Block& block = block_at(lane, address, bytes, bytes, what, pc);
  if (__builtin_expect(&block != lane->block, 0)) {
    fail(lane, pc, "%s: the shared address is that of block %u of the cluster, only this block's (%u) will do", what,
         block.rank, lane->block->rank);
  }
  return block.arena + (address & 0xffffff);
}

static void land(Copy& copy) {
  if (copy.done) return;
  copy.done = true;
  memcpy(copy.destination, copy.source, copy.valid);
  memset(copy.destination + copy.valid, 0, copy.bytes - copy.valid);
}

void complete_copies(Lane* lane, size_t end) {
  if (end == 0) return;
  for (size_t i = 0; i < end; ++i) {
    Copy& copy = lane->copies[i];
    land(copy);
    if (lane->worker->launch->checks)
      lane->block->shadow.copy_landed(lane, copy.destination - lane->block->arena, copy.bytes);
  }
  lane->copies.erase(lane->copies.begin(), lane->copies.begin() + end);
}

// How many wavefronts a matrix move takes: lanes that hit the same bank with different rows wait for each other, 8 at a
// time.
static void count_wavefronts(Worker* worker, const unsigned* addresses, int count) {
  for (int matrix = 0; matrix < count; ++matrix) {
    uint8_t hits[8] = {};  // by group of four banks
    unsigned most = 0;
    for (int row = 0; row < 8; ++row) {
      unsigned address = addresses[8 * matrix + row];
      bool repeated = false;
      for (int before = 0; before < row; ++before) repeated |= addresses[8 * matrix + before] == address;
      if (!repeated) most = std::max<unsigned>(most, ++hits[address / 16 % 8]);
    }
    worker->counters.matrix_wavefronts += most;
    ++worker->counters.matrix_ideal_wavefronts;
  }
}

static void move_matrices(Lane* last, int count, bool transposed, bool store) {
  Lane* lanes = last->warp->lanes;
  const char* what = store ? "stmatrix" : "ldmatrix";
  if (last->wait.mask != kFullMask)
    fail(last, last->pc, "%s needs all 32 lanes of the warp, which has lanes %08x only", what, last->wait.mask);
  Worker* worker = last->worker;
  unsigned char* rows[32];
  unsigned addresses[32];
  for (int l = 0; l < 8 * count; ++l) {
    Lane* lane = &lanes[l];
    addresses[l] = lane->value.word[0];
    rows[l] = shared_pointer(lane, addresses[l], 16, what, lane->pc);
    if (worker->launch->checks) {
      lane->block->shadow.access(lane, rows[l] - lane->block->arena, 16, store ? kWrite : kRead, lane->pc);
    }
  }
  count_wavefronts(worker, addresses, count);
  for (int matrix = 0; matrix < count; ++matrix) {
    for (int l = 0; l < 32; ++l) {
      for (int i = 0; i < 2; ++i) {
        int row = l / 4, column = 2 * (l % 4) + i;
        if (transposed) std::swap(row, column);
        unsigned char* element = rows[8 * matrix + row] + 2 * column;
        auto word = reinterpret_cast<unsigned char*>(&lanes[l].value.word[4 + matrix]) + 2 * i;
        memcpy(store ? element : word, store ? word : element, 2);
      }
    }
  }
  ++(store ? worker->counters.stmatrix : worker->counters.ldmatrix);
}

}  // namespace emu

using namespace emu;

extern "C" {

unsigned emu_index(int which, int axis) { return current->index[which][axis]; }

unsigned emu_lane() { return current->lane; }

unsigned char* emu_dynamic_shared() { return current->block->arena + kArenaStart; }

void* emu_static_shared(const void* tag, unsigned bytes, unsigned alignment) {
  Lane* lane = current;
  Block* block = lane->block;
  for (auto& known : block->statics) {
    if (known.first == tag) return block->arena + known.second;
  }
  unsigned offset = (block->static_end + alignment - 1) / alignment * alignment;
  if (offset + bytes > kArenaBytes)
    fail(lane, EMU_PC, "the block's shared variables need more than %u bytes", kArenaBytes);
  block->static_end = offset + bytes;
  block->statics.push_back({tag, offset});
  memset(block->arena + offset, 0xff, bytes);
  if (lane->worker->launch->checks) block->shadow.reset(block, block->static_end, offset);
  return block->arena + offset;
}

unsigned emu_shared_address(const void* pointer) {
  Lane* lane = current;
  uintptr_t offset = static_cast<const unsigned char*>(pointer) - lane->block->arena;
  if (offset >= kArenaBytes)
    fail(lane, EMU_PC, "the shared address of a pointer that is not into shared memory: %p", pointer);
  return lane->block->rank << 24 | unsigned(offset);
}

void emu_cp_async(unsigned destination, const void* source, int bytes, int valid) {
  Lane* lane = current;
  Worker* worker = lane->worker;
  Launch* launch = worker->launch;
  unsigned char* to = shared_pointer(lane, destination, bytes, "cp.async", EMU_PC);
  if (valid < 0 || valid > bytes) fail(lane, EMU_PC, "cp.async: %d valid bytes of %d", valid, bytes);
  if (valid > 0 && reinterpret_cast<uintptr_t>(source) % bytes != 0) {
    fail(lane, EMU_PC, "cp.async: the source %p is misaligned, it must be a multiple of %d", source, bytes);
  }
  if (launch->checks) {
    if (valid > 0) check_global(lane, reinterpret_cast<uintptr_t>(source), valid, kRead, EMU_PC);
    lane->block->shadow.copy_issued(lane, to - lane->block->arena, bytes, EMU_PC);
  }
  lane->copies.push_back({to, static_cast<const unsigned char*>(source), bytes, valid, false});
  if (launch->async_mode == kEager || (launch->async_mode == kRandom && (worker->random() & 1))) {
    land(lane->copies.back());
  } else {
    memset(to, 0xff, bytes);
  }
  ++worker->counters.cp_async;
  worker->counters.cp_async_bytes += valid;
}

void emu_cp_async_commit() { current->groups.push_back(current->copies.size()); }

void emu_cp_async_wait(int pending) {
  Lane* lane = current;
  if (lane->groups.size() <= size_t(pending)) return;
  size_t closed = lane->groups.size() - pending, end = lane->groups[closed - 1];
  complete_copies(lane, end);
  lane->groups.erase(lane->groups.begin(), lane->groups.begin() + closed);
  for (size_t& group : lane->groups) group -= end;
}

EmuWords emu_ldmatrix(int count, int transposed, unsigned address) {
  Lane* lane = current;
  lane->value.word[0] = address;
  if (arrive(lane, kLdmatrix, count << 1 | transposed, kFullMask, EMU_PC)) {
    move_matrices(lane, count, transposed, false);
    release(lane);
  }
  return {lane->value.wide[2], lane->value.wide[3]};
}

void emu_stmatrix(int count, int transposed, unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  Lane* lane = current;
  lane->value.word[0] = address;
  lane->value.word[4] = r0;
  lane->value.word[5] = r1;
  lane->value.word[6] = r2;
  lane->value.word[7] = r3;
  if (arrive(lane, kStmatrix, count << 1 | transposed, kFullMask, EMU_PC)) {
    move_matrices(lane, count, transposed, true);
    release(lane);
  }
}
}
