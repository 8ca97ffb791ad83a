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

static void check_flag(Lane* lane, const int* p, int access, const void* pc) {
  if (lane->worker->launch->checks) check_access(lane, p, 4, access | kAtomic | kAligned, pc);
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

int emu_load_acquire(const int* p) {
  check_flag(current, p, kRead, EMU_PC);
  // A thread that polls must let others run.
  static thread_local unsigned polls;
  if ((++polls & 15) == 0) emu_yield();
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

void emu_store_release(int* p, int value) {
  check_flag(current, p, kWrite, EMU_PC);
  __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

int emu_atomic_add_release(int* p, int value) {
  check_flag(current, p, kRead | kWrite, EMU_PC);
  ++current->worker->counters.atomics;
  return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);
}

void emu_wait_for(const int* p, int value) {
  Lane* lane = current;
  check_flag(lane, p, kRead, EMU_PC);
  while (__atomic_load_n(p, __ATOMIC_ACQUIRE) != value) {
    lane->wait.key = 0;
    lane->wait.kind = kFlag;
    lane->pc = EMU_PC;
    lane->flag = p;
    lane->flag_value = value;
    lane->worker->watching.push_back(lane);
    block_until_woken(lane);
  }
}
}
