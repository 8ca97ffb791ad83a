// The scheduler: which lane runs next, how a block starts and ends, and what a deadlock looks like.
#include "machine.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>

namespace emu {

// So often lanes poll and none does anything else, before that counts as a wait for ever: some tenths of a second.
constexpr unsigned kMostPolls = 1 << 19;

__thread Lane* current __attribute__((tls_model("initial-exec"))) = nullptr;

uint64_t Worker::random() {
  // splitmix64
  uint64_t x = random_state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

unsigned long code_offset(const Session* session, const void* pc) {
  auto address = reinterpret_cast<uintptr_t>(pc);
  // A return address is behind its call; one less is inside it.
  return address > session->image_begin && address < session->image_end ? address - session->image_begin - 1 : 0;
}

static void record(Worker* worker, const char* head, const char* format, va_list arguments) {
  Session* session = worker->session;
  if (!session->failed.test_and_set()) {
    Launch* launch = worker->launch;
    int length = snprintf(launch->error, sizeof(launch->error), "%s", head);
    vsnprintf(launch->error + length, sizeof(launch->error) - length, format, arguments);
  }
  session->stop = true;
}

void fail(const Lane* lane, const void* pc, const char* format, ...) {
  char head[256];
  const unsigned *b = lane->block->index, *t = lane->thread;
  snprintf(head, sizeof(head), "block (%u, %u, %u), thread (%u, %u, %u), @[%lx]: ", b[0], b[1], b[2], t[0], t[1], t[2],
           code_offset(lane->worker->session, pc));
  va_list arguments;
  va_start(arguments, format);
  record(lane->worker, head, format, arguments);
  va_end(arguments);
  siglongjmp(lane->worker->escape, 1);
}

void fail_block(Worker* worker, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  record(worker, "", format, arguments);
  va_end(arguments);
  siglongjmp(worker->escape, 1);
}

const char* wait_name(Wait wait) {
  static const char* const names[] = {"nothing",       "__syncthreads",
                                      "__syncwarp",    "a shuffle",
                                      "a vote",        "__match_any_sync",
                                      "a reduction",   "ldmatrix",
                                      "stmatrix",      "mma",
                                      "wgmma",         "wgmma_fence",
                                      "wgmma_commit",  "wgmma_wait",
                                      "mbarrier_wait", "a named barrier",
                                      "cluster_wait",  "a flag (wait_for)"};
  return names[wait.kind];
}

static void lane_main() {
  Lane* lane = current;
  Launch* launch = lane->worker->launch;
  launch->entry(launch->arguments);
  finish_lane(current);
}

bool Worker::prepare() {
  unsigned threads = launch->block[0] * launch->block[1] * launch->block[2];
  unsigned size = launch->cluster[0] * launch->cluster[1] * launch->cluster[2];
  size_t count = size * session->batch;
  if (!stacks.reserve(threads * count)) return false;
  blocks.resize(count);
  clusters.resize(session->batch);
  for (size_t i = 0; i < count; ++i) {
    Block& block = blocks[i];
    void* arena = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) return false;
    block.arena = static_cast<unsigned char*>(arena);
    block.rank = unsigned(i % size);
    block.cluster = &clusters[i / size];
    block.thread_count = threads;
    block.warp_count = (threads + 31) / 32;
    block.lanes.resize(threads);
    block.warps.resize(block.warp_count);
    block.mbarrier_at.resize(kArenaBytes / 8);
    if (launch->traffic) block.traffic.resize(block.warp_count);
    for (unsigned t = 0; t < threads; ++t) {
      Lane& lane = block.lanes[t];
      lane.worker = this;
      lane.block = &block;
      lane.warp = &block.warps[t / 32];
      lane.stack = stacks[i * threads + t];
      lane.number = t;
      lane.lane = t % 32;
      lane.actor = 32 * block.warp_count * block.rank + t;
      lane.thread[0] = t % launch->block[0];
      lane.thread[1] = t / launch->block[0] % launch->block[1];
      lane.thread[2] = t / launch->block[0] / launch->block[1];
      lane.index[EMU_THREAD] = lane.thread;
      lane.index[EMU_BLOCK] = block.index;
      lane.index[EMU_BLOCK_DIM] = launch->block;
      lane.index[EMU_GRID_DIM] = launch->grid;
    }
  }
  for (size_t i = 0; i < clusters.size(); ++i) {
    clusters[i].worker = this;
    clusters[i].first = unsigned(i * size);
    clusters[i].size = size;
    clusters[i].thread_actors = size * 32 * ((threads + 31) / 32);
  }
  return true;
}

void Worker::start_block(Block& block, const uint64_t* origin) {
  const uint32_t* shape = launch->cluster;
  unsigned within[3] = {block.rank % shape[0], block.rank / shape[0] % shape[1], block.rank / shape[0] / shape[1]};
  for (int i = 0; i < 3; ++i) block.index[i] = unsigned(origin[i] * shape[i] + within[i]);
  block.arrived = block.exited = 0;
  block.ready = block.warp_count == 32 ? kFullMask : (1u << block.warp_count) - 1;
  block.statics.clear();
  block.static_end = kArenaStart + launch->shared_bytes;
  for (const MBarrier& barrier : block.mbarriers) block.mbarrier_at[barrier.offset / 8] = 0;
  block.mbarriers.clear();
  for (NamedBarrier& barrier : block.named) barrier = NamedBarrier{};
  start_warpgroups(block);
  block.barrier_time = 0;
  block.far = block.fence_of = block.fence_finds = ClockRef();
  // NaN in every floating-point type.
  memset(block.arena + kArenaStart, 0xff, launch->shared_bytes);
  if (launch->checks) block.shadow.reset(&block, block.static_end);
  for (unsigned w = 0; w < block.warp_count; ++w) {
    unsigned lanes = std::min(32u, block.thread_count - 32 * w);
    unsigned members = lanes == 32 ? kFullMask : (1u << lanes) - 1;
    block.warps[w] = Warp{w, members, members, 0, 0, &block.lanes[32 * w], {}, false};
  }
  for (Lane& lane : block.lanes) {
    lane.wait.key = 0;
    lane.copies.clear();
    lane.groups.clear();
    lane.stores.clear();
    lane.additions.clear();
    lane.store_groups.clear();
    lane.store_actor = 0;
    lane.at_cluster = kElsewhere;
    lane.far = ClockRef();
    lane.fence_time = lane.grid_time = 0;
    if (launch->checks) memset(lane.known, 0, sizeof(lane.known));
    start_context(lane.context, lane.stack, lane.number, lane_main);
  }
}

void Worker::run(uint64_t first) {
  random_state = launch->seed * 0x2545f4914f6cdd1du + first;
  const uint32_t *grid = launch->grid, *shape = launch->cluster;
  uint64_t across[2] = {grid[0] / shape[0], grid[1] / shape[1]};
  flying.clear();
  watching.clear();
  live_lanes = 0;
  for (size_t i = 0; i < clusters.size(); ++i) {
    Cluster& cluster = clusters[i];
    uint64_t number = first + i;
    uint64_t origin[3] = {number % across[0], number / across[0] % across[1], number / across[0] / across[1]};
    cluster.arrived = cluster.phase = 0;
    cluster.waiting.clear();
    cluster.arrivals.clear();
    cluster.met = cluster.join_from = cluster.join_with = cluster.join_to = ClockRef();
    cluster.time = 1;
    cluster.number = uint32_t(number);
    cluster.fine = false;
    cluster.actors.clear();
    cluster.live = cluster.size * blocks[0].thread_count;
    for (unsigned rank = 0; rank < cluster.size; ++rank) start_block(blocks[cluster.first + rank], origin);
    live_lanes += cluster.live;
  }
  warp = &blocks[0].warps[0];
  in_fiber = true;
  current = pick();
  switch_context(main, current->context);
  in_fiber = false;
  current = nullptr;
  for (Block& block : blocks) {
    for (Traffic& traffic : block.traffic) traffic.flush(sites);
  }
}

// A random one of the bits that are set.
static unsigned random_bit(Worker* worker, unsigned mask) {
  unsigned shift = worker->random() & 31;
  unsigned rotated = mask >> shift | mask << (-shift & 31);
  return (__builtin_ctz(rotated) + shift) & 31;
}

Lane* Worker::pick() {
  ++counters.switches;
  while (warp->runnable == 0) {
    if (live_lanes == 0) return nullptr;
    if (session->stop) siglongjmp(escape, 1);
    size_t first = blocks.size() == 1 ? 0 : random() % blocks.size(), i = 0;
    while (i < blocks.size() && blocks[(first + i) % blocks.size()].ready == 0) ++i;
    if (i < blocks.size()) {
      Block& block = blocks[(first + i) % blocks.size()];
      warp = &block.warps[random_bit(this, block.ready)];
      continue;
    }
    // Nobody can go on: now is the latest time at which copies land. A block on another OS thread may set a flag.
    int running = session->running;
    if (look_at_flags() || land_one(this)) continue;
    if (watching.empty() || running == 1) deadlock(this);
    sched_yield();
  }
  return &warp->lanes[random_bit(this, warp->runnable)];
}

bool Worker::look_at_flags() {
  bool any = false;
  for (size_t i = 0; i < watching.size();) {
    Lane* lane = watching[i];
    if (__atomic_load_n(lane->flag, __ATOMIC_ACQUIRE) == lane->flag_value) {
      any = true;
      wake(lane);
      watching[i] = watching.back();
      watching.pop_back();
    } else {
      ++i;
    }
  }
  return any;
}

void Worker::poll(const void* pc) {
  if (session->stop) siglongjmp(escape, 1);
  // What this lane polls may depend on copies and flags that otherwise come when nobody can go on.
  if (!watching.empty()) look_at_flags();
  if (!flying.empty() && random() % 4 == 0) land_one(this);
  uint64_t now = counters.global_store_bytes + counters.shared_store_bytes + counters.bulk_bytes + counters.barriers;
  if (now != done || !flying.empty() || !launch->checks) {
    done = now;
    polls = 0;
    if (idle) --session->idle;
    idle = false;
  } else if (++polls >= kMostPolls) {
    if (!idle) ++session->idle;
    idle = true;
    if (session->idle >= session->running) {
      fail(current, pc, "an endless wait: threads have polled %u times and more, and none has stored anything", polls);
    }
  }
  // Let another warp go on if there is one: what this lane polls may be its work, or another block's.
  Block* block = current->block;
  unsigned others = block->ready & ~(1u << current->warp->number);
  if (blocks.size() > 1 && (others == 0 || random() % 4 == 0)) {
    block = &blocks[random() % blocks.size()];
    others = block->ready;
  }
  if (others != 0) warp = &block->warps[__builtin_ctz(others)];
  yield_to_next(current->context);
}

void Worker::yield_to_next(Context& from) {
  Lane* next = pick();
  if (next != nullptr && &next->context == &from) return;
  current = next;
  switch_context(from, next == nullptr ? main : next->context);
}

void block_until_woken(Lane* lane) {
  Warp* warp = lane->warp;
  warp->runnable &= ~(1u << lane->lane);
  if (warp->runnable == 0) lane->block->ready &= ~(1u << warp->number);
  lane->worker->yield_to_next(lane->context);
}

void wake(Lane* lane) {
  lane->warp->runnable |= 1u << lane->lane;
  lane->block->ready |= 1u << lane->warp->number;
}

void finish_lane(Lane* lane) {
  Worker* worker = lane->worker;
  Block* block = lane->block;
  Warp* warp = lane->warp;
  unsigned bit = 1u << lane->lane;
  complete_copies(lane, lane->copies.size());
  end_bulk(lane);
  end_wgmma(lane);
  warp->exited |= bit;
  warp->runnable &= ~bit;
  if (warp->runnable == 0) block->ready &= ~(1u << warp->number);
  if (++block->exited == block->thread_count) end_block_bulk(lane);
  --worker->live_lanes;
  Cluster* cluster = block->cluster;
  --cluster->live;
  if (lane->at_cluster == kArrived) --cluster->arrived;
  meet_in_cluster(cluster);
  Context unused;
  worker->yield_to_next(unused);
  __builtin_unreachable();
}

// Lists the waiting lanes of `block`, those of a warp that wait for the same together.
static int list_waiting(const Block& block, const Session* session, char* text, size_t size) {
  int length = 0, groups = 0;
  for (const Warp& warp : block.warps) {
    unsigned left = warp.members & ~warp.exited;
    while (left != 0) {
      const Lane& first = warp.lanes[__builtin_ctz(left)];
      unsigned same = 0;
      for (unsigned l = 0; l < 32; ++l) {
        const Lane& lane = warp.lanes[l];
        if ((left >> l & 1) && lane.wait.key == first.wait.key && lane.pc == first.pc) same |= 1u << l;
      }
      left &= ~same;
      if (++groups > 12) continue;
      length += snprintf(text + length, size - length, "\n  warp %u, lanes %08x wait at @[%lx] for %s", warp.number,
                         same, code_offset(session, first.pc), wait_name(first.wait));
      if (first.wait.kind == kMbarrier) {
        length += snprintf(text + length, size - length, " at offset %u, parity %u", first.wait.mask - kArenaStart,
                           first.wait.detail);
      } else if (first.wait.kind == kNamedBarrier) {
        length += snprintf(text + length, size - length, " (%u)", first.wait.detail);
      } else if (first.wait.mask != 0) {
        length += snprintf(text + length, size - length, " of lanes %08x", first.wait.mask);
        unsigned gone = first.wait.mask & warp.exited;
        if (gone) length += snprintf(text + length, size - length, " (lanes %08x have ended)", gone);
      }
    }
  }
  if (groups > 12) length += snprintf(text + length, size - length, "\n  and %d groups more", groups - 12);
  return length;
}

void deadlock(Worker* worker) {
  char text[6000];
  size_t length = 0;
  for (const Block& block : worker->blocks) {
    if (block.exited == block.thread_count || length > sizeof(text) / 2) continue;
    length += snprintf(text + length, sizeof(text) - length, "%sblock (%u, %u, %u): ", length ? "\n" : "",
                       block.index[0], block.index[1], block.index[2]);
    if (block.arrived != 0) {
      length +=
          snprintf(text + length, sizeof(text) - length,
                   "divergent barrier: %u of %u threads wait at __syncthreads (@[%lx]), %u have ended; ", block.arrived,
                   block.thread_count, code_offset(worker->session, block.barrier_pc), block.exited);
    }
    length += snprintf(text + length, sizeof(text) - length, "deadlock, no thread can go on:");
    length += list_waiting(block, worker->session, text + length, sizeof(text) - length);
    length += list_barriers(block, worker->session, text + length, sizeof(text) - length);
  }
  for (const Lane* lane : worker->watching) {
    if (worker->launch->cooperative == 0 && length < sizeof(text)) {
      length += snprintf(text + length, sizeof(text) - length,
                         "\nblock (%u, %u, %u) waits for a flag: blocks that wait for each other need a cooperative "
                         "launch (Launch.cooperative)",
                         lane->block->index[0], lane->block->index[1], lane->block->index[2]);
      break;
    }
  }
  fail_block(worker, "%s", text);
}

}  // namespace emu
