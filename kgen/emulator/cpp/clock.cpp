// Vector clocks: joining, passing on, and asking them.
#include "clock.h"

#include <stdio.h>

#include <algorithm>

#include "machine.h"

namespace emu {

static void raise(std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
  if (to.size() < from.size()) to.resize(from.size());
  uint32_t* __restrict__ a = to.data();
  const uint32_t* __restrict__ b = from.data();
  for (size_t i = 0, end = from.size(); i < end; ++i) a[i] = a[i] < b[i] ? b[i] : a[i];
}

static void raise(std::vector<uint32_t>& to, unsigned at, uint32_t time) {
  if (to.size() <= at) to.resize(at + 1);
  to[at] = std::max(to[at], time);
}

static bool covers(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  if (a.size() < b.size()) return false;
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] < b[i]) return false;
  }
  return true;
}

void Clock::join(const Clock& other) {
  raise(seen, other.seen);
  raise(shown, other.shown);
}

static ClockRef copy(const ClockRef& clock) {
  auto made = new Clock(*clock);
  made->uses = 0;
  return ClockRef(made);
}

ClockRef joined(const ClockRef& a, const ClockRef& b) {
  if (!b || a == b) return a;
  if (!a || (covers(b->seen, a->seen) && covers(b->shown, a->shown))) return b;
  if (covers(a->seen, b->seen) && covers(a->shown, b->shown)) return a;
  ClockRef made = copy(a);
  made->join(*b);
  return made;
}

void Gathering::add(Lane* lane) {
  Block* block = lane->block;
  Cluster* cluster = block->cluster;
  if (!clock_) clock_ = ClockRef(new Clock);
  if (lane->far && !(lane->far == last_lane_)) {
    clock_->join(*lane->far);
    last_lane_ = lane->far;
  }
  if (block->far && !(block->far == last_block_)) {
    clock_->join(*block->far);
    last_block_ = block->far;
  }
  std::vector<uint32_t>& seen = clock_->seen;
  unsigned first = block->lanes[0].actor;
  if (seen.size() < first + 32 * block->warp_count) seen.resize(first + 32 * block->warp_count);
  if (block != filled_ || block->barrier_time != filled_time_) {
    for (unsigned i = first; i < first + 32 * block->warp_count; ++i) seen[i] = std::max(seen[i], block->barrier_time);
    filled_ = block;
    filled_time_ = block->barrier_time;
  }
  uint32_t* own_warp = &seen[lane->actor - lane->lane];
  for (int i = 0; i < 32; ++i) own_warp[i] = std::max(own_warp[i], lane->known[i]);
  seen[lane->actor] = cluster->time++;
}

void Gathering::add(unsigned actor, uint32_t time) {
  if (!clock_) clock_ = ClockRef(new Clock);
  raise(clock_->seen, actor, time);
}

ClockRef Gathering::snapshot() const { return clock_ ? copy(clock_) : ClockRef(); }

void acquire(Lane* lane, const ClockRef& clock) {
  Cluster* cluster = lane->block->cluster;
  if (!clock || lane->far == clock) return;
  // Lanes that wait together mostly know the same.
  if (!(cluster->join_from == lane->far && cluster->join_with == clock)) {
    cluster->join_to = joined(lane->far, clock);
    cluster->join_from = lane->far;
    cluster->join_with = clock;
  }
  lane->far = cluster->join_to;
}

ClockRef clock_of(unsigned actor, uint32_t time) {
  ClockRef made(new Clock);
  raise(made->seen, actor, time);
  return made;
}

void fence_proxy(Lane* lane) {
  Gathering all;
  all.add(lane);
  ClockRef known = all.snapshot();
  known->shown = known->seen;
  lane->far = known;
}

bool knows(const Lane* lane, unsigned actor, uint32_t time) {
  if (actor == lane->actor) return true;
  const Block* block = lane->block;
  unsigned number = actor - block->lanes[0].actor;
  if (number < 32 * block->warp_count) {
    if (time <= block->barrier_time) return true;
    if (number / 32 == lane->warp->number && time <= lane->known[number % 32]) return true;
  }
  auto holds = [&](const ClockRef& clock) { return clock && actor < clock->seen.size() && time <= clock->seen[actor]; };
  return holds(lane->far) || holds(block->far);
}

bool knows_shown(const Lane* lane, unsigned actor, uint32_t time) {
  auto holds = [&](const ClockRef& clock) {
    return clock && actor < clock->shown.size() && time <= clock->shown[actor];
  };
  return holds(lane->far) || holds(lane->block->far);
}

void join_block(Block* block) {
  Clock* all = nullptr;
  ClockRef last;
  for (Lane& lane : block->lanes) {
    if (!lane.far) continue;
    if (!(lane.far == last)) {
      last = lane.far;
      if (all == nullptr) {
        ClockRef made(new Clock);
        if (block->far) made->join(*block->far);
        block->far = made;
        all = &*block->far;
      }
      all->join(*last);
    }
    lane.far = ClockRef();
  }
}

void join_far(Lane* lanes, unsigned mask) {
  ClockRef all;
  for (unsigned left = mask; left != 0; left &= left - 1) {
    const ClockRef& far = lanes[__builtin_ctz(left)].far;
    if (far && !(far == all)) all = joined(all, far);
  }
  if (!all) return;
  for (unsigned left = mask; left != 0; left &= left - 1) lanes[__builtin_ctz(left)].far = all;
}

unsigned new_actor(Cluster* cluster, ActorKind kind, const Block* block, unsigned value) {
  cluster->actors.push_back({kind, block, value});
  return unsigned(cluster->thread_actors + cluster->actors.size() - 1);
}

void describe_actor(const Cluster* cluster, unsigned actor, char* text, size_t size) {
  Actor who = {kThreadActor, &cluster->worker->blocks[cluster->first], 0};
  if (actor >= cluster->thread_actors) {
    who = cluster->actors[actor - cluster->thread_actors];
  } else {
    who.block += actor / (32 * who.block->warp_count);
    who.value = actor % (32 * who.block->warp_count);
  }
  char of[48] = "";
  if (cluster->size > 1) snprintf(of, sizeof(of), " of block %u of the cluster", who.block->rank);
  const unsigned* thread = who.block->lanes[who.kind == kThreadActor || who.kind == kStores ? who.value : 0].thread;
  switch (who.kind) {
    case kThreadActor:
      snprintf(text, size, "thread (%u, %u, %u)%s", thread[0], thread[1], thread[2], of);
      break;
    case kCopies:
      snprintf(text, size, "a copy that arrives on the mbarrier at offset %u%s", who.value - kArenaStart, of);
      break;
    case kWarpgroupReads:
      snprintf(text, size, "a wgmma of warps %u to %u%s", 4 * who.value, 4 * who.value + 3, of);
      break;
    default:
      snprintf(text, size, "a TMA store of thread (%u, %u, %u)%s", thread[0], thread[1], thread[2], of);
  }
}

}  // namespace emu
