// Distributed shared memory, and flags in global memory that blocks wait for.
#include <string.h>

#include "machine.h"

using namespace emu;

static unsigned char* reach(Lane* lane, unsigned address, unsigned bytes, int access, const void* pc) {
  const char* what = access == kRead ? "load_cluster" : "store_cluster";
  Block& block = block_at(lane, address, bytes, bytes, what, pc);
  unsigned offset = address & 0xffffff;
  lane->block->cluster->fine = true;
  if (lane->worker->launch->checks) block.shadow.access(lane, offset, bytes, access, pc);
  return block.arena + offset;
}

// A load of a flag; what it finds is known only afterwards, and with it its order.
static void check_flag(Lane* lane, const void* p, const void* pc) {
  if (checks(lane)) check_access(lane, p, 4, kRead | kAtomic | kAligned | kLater, pc);
}

static void flag_loaded(Lane* lane, const void* p, bool acquires, const void* pc) {
  if (!checks(lane)) return;
  find_at(lane, p, acquires);
  check_order(lane, reinterpret_cast<uintptr_t>(p), 4, kRead | kAtomic, pc);
}

extern "C" {

unsigned emu_cluster_rank() { return current->block->rank; }

unsigned emu_cluster_map(unsigned address, unsigned rank) {
  Lane* lane = current;
  unsigned size = lane->block->cluster->size;
  if (rank >= size) fail(lane, EMU_PC, "cluster_map: block %u of a cluster of %u", rank, size);
  return (address & 0xffffff) | rank << 24;
}

EmuWords emu_cluster_load(unsigned address, int bytes) {
  EmuWords words = {};
  memcpy(&words, reach(current, address, unsigned(bytes), kRead, EMU_PC), bytes);
  return words;
}

void emu_cluster_store(unsigned address, int bytes, uint64_t low, uint64_t high) {
  EmuWords words = {low, high};
  memcpy(reach(current, address, unsigned(bytes), kWrite, EMU_PC), &words, bytes);
}

unsigned emu_load_relaxed(const unsigned* p) {
  check_flag(current, p, EMU_PC);
  current->worker->polled(EMU_PC);
  unsigned value = __atomic_load_n(p, __ATOMIC_RELAXED);
  flag_loaded(current, p, false, EMU_PC);
  return value;
}

int emu_load_acquire(const int* p) {
  check_flag(current, p, EMU_PC);
  current->worker->polled(EMU_PC);
  int value = __atomic_load_n(p, __ATOMIC_ACQUIRE);
  flag_loaded(current, p, true, EMU_PC);
  return value;
}

void emu_store_release(int* p, int value) {
  if (checks(current)) {
    check_access(current, p, 4, kWrite | kAtomic | kAligned, EMU_PC);
    leave_at(current, p, known_to(current), true);
  }
  __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

int emu_atomic_add_release(int* p, int value) {
  Lane* lane = current;
  InOrder order(lane->worker);
  if (checks(lane)) {
    find_at(lane, p, false);
    check_access(lane, p, 4, kRead | kWrite | kAtomic | kAligned, EMU_PC);
    leave_at(lane, p, known_to(lane), false);
  }
  ++lane->worker->counters.atomics;
  int before = __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);
  find_at(lane, p, false);
  return before;
}

void emu_wait_for(const int* p, int value) {
  Lane* lane = current;
  check_flag(lane, p, EMU_PC);
  while (__atomic_load_n(p, __ATOMIC_ACQUIRE) != value) {
    lane->wait.key = 0;
    lane->wait.kind = kFlag;
    lane->pc = EMU_PC;
    lane->flag = p;
    lane->flag_value = value;
    lane->worker->watching.push_back(lane);
    block_until_woken(lane);
  }
  flag_loaded(lane, p, true, EMU_PC);
}

void emu_grid_wait() { current->grid_time = current->block->cluster->time++; }
}
