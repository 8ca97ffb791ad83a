// Barriers beyond __syncthreads: mbarriers, named barriers, the barrier of a cluster.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "collectives.h"

namespace emu {

constexpr int kMaxCount = (1 << 20) - 1;

static void come(Lane* lane, Gathering& arrivals) {
  if (checks(lane)) arrivals.add(lane);
}

MBarrier& mbarrier_at(Lane* lane, Block& block, unsigned offset, const char* what, const void* pc) {
  unsigned index = block.mbarrier_at[offset / 8];
  if (index == 0) fail(lane, pc, "%s: no mbarrier_init has made offset %u an mbarrier", what, offset - kArenaStart);
  MBarrier& barrier = block.mbarriers[index - 1];
  if (checks(lane) && !knows(lane, barrier.init_actor, barrier.init_time) &&
      !knows(lane, barrier.actor, barrier.init_time)) {
    char who[128];
    describe_actor(block.cluster, barrier.init_actor, who, sizeof(who));
    fail(lane, pc, "%s: %s has made offset %u an mbarrier with no %s in between", what, who, offset - kArenaStart,
         &block == lane->block ? "__syncthreads" : "cluster_sync");
  }
  return barrier;
}

static void end_phase(Lane* lane, MBarrier& barrier, const void* pc) {
  if (barrier.pending == 0 && barrier.bytes < 0) {
    fail(lane, pc, "copies bring %lld bytes more to the mbarrier at offset %u than its phase %u expects",
         -(long long)barrier.bytes, barrier.offset - kArenaStart, barrier.phase);
  }
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.count;
  if (checks(lane)) barrier.ended = barrier.arrivals.snapshot();
  for (Lane* waiting : barrier.waiting) {
    if (waiting->awaited + 1 == barrier.phase) wake(waiting);
  }
}

static void arrive_on(Lane* lane, Block& block, unsigned offset, int bytes, const char* what, const void* pc) {
  MBarrier& barrier = mbarrier_at(lane, block, offset, what, pc);
  if (barrier.pending == 0) {
    fail(lane, pc,
         "%s: one arrival too many: all %d of phase %u of the mbarrier at offset %u have come (%lld bytes are still "
         "expected)",
         what, barrier.count, barrier.phase, offset - kArenaStart, (long long)barrier.bytes);
  }
  barrier.bytes += bytes;
  if (barrier.bytes > kMaxCount) {
    fail(lane, pc, "%s: the mbarrier at offset %u would expect %lld bytes, the most is %d", what, offset - kArenaStart,
         (long long)barrier.bytes, kMaxCount);
  }
  come(lane, barrier.arrivals);
  --barrier.pending;
  end_phase(lane, barrier, pc);
}

void bytes_arrived(Lane* lane, MBarrier& barrier, unsigned bytes, const void* pc) {
  barrier.bytes -= bytes;
  end_phase(lane, barrier, pc);
}

static void wait_on(Lane* lane, unsigned address, unsigned parity, const void* pc) {
  shared_pointer(lane, address, 8, "mbarrier_wait", pc);
  unsigned offset = address & 0xffffff;
  MBarrier& barrier = mbarrier_at(lane, *lane->block, offset, "mbarrier_wait", pc);
  if (parity > 1) fail(lane, pc, "mbarrier_wait: a parity is 0 or 1, not %u", parity);
  if ((barrier.phase & 1) == parity) {
    lane->wait.kind = kMbarrier;
    lane->wait.detail = uint16_t(parity);
    lane->wait.mask = offset;
    lane->pc = pc;
    lane->awaited = barrier.phase;
    barrier.waiting.push_back(lane);
    block_until_woken(lane);
    barrier.waiting.erase(std::find(barrier.waiting.begin(), barrier.waiting.end(), lane));
    if (barrier.phase != lane->awaited + 1) {
      fail(lane, pc,
           "mbarrier_wait: while this thread waited for phase %u of the mbarrier at offset %u, phase %u ended too: by "
           "its parity alone it may wait for ever",
           lane->awaited, offset - kArenaStart, barrier.phase - 1);
    }
  }
  if (checks(lane)) acquire(lane, barrier.ended);
}

static void come_to_named(Lane* lane, unsigned id, unsigned threads, bool wait, const void* pc) {
  Block* block = lane->block;
  const char* what = wait ? "named_barrier_sync" : "named_barrier_arrive";
  NamedBarrier& barrier = block->named[id];
  block->cluster->fine = true;
  if (threads % 32 != 0 || threads == 0 || threads > 32 * block->warp_count) {
    fail(lane, pc, "%s: barrier %u cannot be of %u threads: a multiple of 32, and the block has %u", what, id, threads,
         block->thread_count);
  }
  if (barrier.arrived == 0) {
    barrier.threads = threads;
    barrier.pc = pc;
  } else if (barrier.threads != threads) {
    fail(lane, pc, "divergent barrier: %s of barrier %u for %u threads, but the first to come said %u, @[%lx]", what,
         id, threads, barrier.threads, code_offset(lane->worker->session, barrier.pc));
  }
  uint32_t& lanes = barrier.lanes[lane->warp->number];
  if (lanes >> lane->lane & 1) fail(lane, pc, "%s: this thread has come to barrier %u already", what, id);
  lanes |= 1u << lane->lane;
  come(lane, barrier.arrivals);
  ++barrier.arrived;
  uint32_t phase = barrier.phase;
  if (barrier.arrived < threads) {
    if (!wait) return;
    lane->wait.key = 0;
    lane->wait.kind = kNamedBarrier;
    lane->wait.detail = uint16_t(id);
    lane->pc = pc;
    barrier.waiting.push_back(lane);
    block_until_woken(lane);
    if (barrier.phase != phase + 1) fail(lane, pc, "%s: barrier %u went on without this thread", what, id);
  } else {
    for (const Warp& warp : block->warps) {
      uint32_t come = barrier.lanes[warp.number];
      if (come != 0 && come != warp.members) {
        fail(lane, pc, "%s: barrier %u of %u threads is full, but of warp %u only lanes %08x have come", what, id,
             threads, warp.number, come);
      }
    }
    memset(barrier.lanes, 0, sizeof(barrier.lanes));
    barrier.arrived = 0;
    ++barrier.phase;
    barrier.met = barrier.arrivals.snapshot();
    barrier.arrivals.clear();
    for (Lane* waiting : barrier.waiting) wake(waiting);
    barrier.waiting.clear();
    ++lane->worker->counters.barriers;
  }
  if (wait && checks(lane)) acquire(lane, barrier.met);
}

void meet_in_cluster(Cluster* cluster) {
  if (cluster->arrived == 0 || cluster->arrived < cluster->live) return;
  cluster->arrived = 0;
  ++cluster->phase;
  cluster->met = cluster->arrivals.snapshot();
  cluster->arrivals.clear();
  for (unsigned i = 0; i < cluster->size; ++i) {
    for (Lane& lane : cluster->worker->blocks[cluster->first + i].lanes) {
      if (lane.at_cluster == kArrived) lane.at_cluster = kMet;
    }
  }
  for (Lane* waiting : cluster->waiting) wake(waiting);
  cluster->waiting.clear();
}

size_t list_barriers(const Block& block, const Session* session, char* text, size_t size) {
  size_t length = 0;
  auto room = [&] { return length < size ? size - length : 0; };
  int shown = 0;
  for (const MBarrier& barrier : block.mbarriers) {
    if (barrier.waiting.empty() && barrier.pending == barrier.count && barrier.bytes == 0) continue;
    if (++shown > 16) continue;
    length += snprintf(text + length, room(),
                       "\n  the mbarrier at offset %u is in phase %u (parity %u): %d of %d arrivals and %lld bytes are "
                       "missing, %zu threads wait",
                       barrier.offset - kArenaStart, barrier.phase, barrier.phase & 1, barrier.pending, barrier.count,
                       (long long)barrier.bytes, barrier.waiting.size());
  }
  for (unsigned id = 0; id < kNamedBarriers; ++id) {
    const NamedBarrier& barrier = block.named[id];
    if (barrier.arrived == 0) continue;
    length += snprintf(text + length, room(), "\n  to named barrier %u (@[%lx]) %u of %u threads have come", id,
                       code_offset(session, barrier.pc), barrier.arrived, barrier.threads);
  }
  return std::min(length, size);
}

}  // namespace emu

using namespace emu;

extern "C" {

void emu_mbarrier_init(unsigned address, int count) {
  Lane* lane = current;
  Block* block = lane->block;
  const void* pc = EMU_PC;
  shared_pointer(lane, address, 8, "mbarrier_init", pc);
  if (count < 1 || count > kMaxCount) {
    fail(lane, pc, "mbarrier_init: a count is 1 to %d, not %d", kMaxCount, count);
  }
  unsigned offset = address & 0xffffff;
  if (block->mbarrier_at[offset / 8] != 0) {
    fail(lane, pc, "mbarrier_init: offset %u is an mbarrier already", offset - kArenaStart);
  }
  Cluster* cluster = block->cluster;
  cluster->fine = true;
  MBarrier barrier = {};
  barrier.offset = offset;
  barrier.count = barrier.pending = count;
  barrier.pc = pc;
  barrier.actor = new_actor(cluster, kCopies, block, offset);
  barrier.init_actor = lane->actor;
  barrier.init_time = cluster->time++;
  block->mbarriers.push_back(barrier);
  block->mbarrier_at[offset / 8] = uint16_t(block->mbarriers.size());
  memset(block->arena + offset, 0xff, 8);
  if (checks(lane)) block->shadow.set_barrier(lane, offset, pc);
}

void emu_mbarrier_init_fence() {
  Lane* lane = current;
  for (MBarrier& barrier : lane->block->mbarriers) barrier.shown |= barrier.init_actor == lane->actor;
}

void emu_mbarrier_arrive(unsigned address, int bytes) {
  Lane* lane = current;
  const char* what = bytes == 0 ? "mbarrier_arrive" : "mbarrier_arrive_expect";
  shared_pointer(lane, address, 8, what, EMU_PC);
  if (bytes < 0) fail(lane, EMU_PC, "%s: %d bytes", what, bytes);
  arrive_on(lane, *lane->block, address & 0xffffff, bytes, what, EMU_PC);
}

void emu_mbarrier_arrive_remote(unsigned address, unsigned rank) {
  Lane* lane = current;
  unsigned there = (address & 0xffffff) | rank << 24;
  Block& block = block_at(lane, there, 8, 8, "mbarrier_arrive_remote", EMU_PC);
  arrive_on(lane, block, address & 0xffffff, 0, "mbarrier_arrive_remote", EMU_PC);
}

void emu_mbarrier_wait(unsigned address, unsigned parity) { wait_on(current, address, parity, EMU_PC); }

void emu_named_barrier(int id, int threads, int wait) {
  come_to_named(current, unsigned(id), unsigned(threads), wait != 0, EMU_PC);
}

void emu_cluster_arrive(int release) {
  Lane* lane = current;
  Cluster* cluster = lane->block->cluster;
  if (lane->at_cluster != kElsewhere) {
    fail(lane, EMU_PC, "cluster_arrive: this thread has arrived before, and no cluster_wait lies in between");
  }
  cluster->fine = true;
  lane->at_cluster = kArrived;
  if (release) {
    come(lane, cluster->arrivals);
  } else if (checks(lane)) {  // shown are that it has started, and the mbarriers that it has fenced
    cluster->arrivals.add(lane->actor, kStarted);
    for (const MBarrier& barrier : lane->block->mbarriers) {
      if (barrier.shown && barrier.init_actor == lane->actor) cluster->arrivals.add(barrier.actor, barrier.init_time);
    }
  }
  ++cluster->arrived;
  meet_in_cluster(cluster);
}

void emu_cluster_wait() {
  Lane* lane = current;
  Cluster* cluster = lane->block->cluster;
  if (lane->at_cluster == kElsewhere) fail(lane, EMU_PC, "cluster_wait: this thread has not arrived");
  if (lane->at_cluster == kArrived) {
    lane->wait.key = 0;
    lane->wait.kind = kClusterBarrier;
    lane->pc = EMU_PC;
    cluster->waiting.push_back(lane);
    block_until_woken(lane);
  }
  lane->at_cluster = kElsewhere;
  if (checks(lane)) acquire(lane, cluster->met);
}
}
