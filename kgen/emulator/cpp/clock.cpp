// Vector clocks: joining, passing on, and asking them.
#include "clock.h"

#include <stdio.h>

#include <algorithm>

#include "machine.h"

namespace emu {

static void raise(Times& to, unsigned at, uint32_t time) {
  if (to.size() <= at) to.resize(at + 1);
  to[at] = std::max(to[at], time);
}

static bool covers(const Clock& a, const Clock& b) {
  return covers(a.seen, b.seen) && covers(a.shown, b.shown) && a.others.covers(b.others) && a.fenced.covers(b.fenced) &&
         a.pending.covers(b.pending);
}

void Clock::join(const Clock& other) {
  raise(seen, other.seen);
  raise(shown, other.shown);
  others.join(other.others);
  fenced.join(other.fenced);
  pending.join(other.pending);
}

static ClockRef copy(const ClockRef& clock) {
  auto made = new Clock(*clock);
  made->uses = 0;
  return ClockRef(made);
}

ClockRef joined(const ClockRef& a, const ClockRef& b) {
  if (!b || a == b) return a;
  if (!a || covers(*b, *a)) return b;
  if (covers(*a, *b)) return a;
  ClockRef made = copy(a);
  made->join(*b);
  return made;
}

// The fences of threads of `block` since it last met have covered `times`, and all that it knew by then.
static void cover(Clock& clock, const Block* block, Times times) {
  uint32_t number = block->cluster->number;
  if (block->far) {
    raise(times, block->far->seen);
    clock.fenced.join(block->far->others);
    clock.fenced.join(block->far->pending);
    if (!block->far->shown.empty()) clock.fenced.shown.join(number, block->far->shown);
  }
  clock.fenced.seen.join(number, std::move(times));
}

static Times times_met(const Block* block) {
  unsigned first = block->lanes[0].actor;
  Times times(first + block->lanes.size());
  std::fill(times.begin() + first, times.end(), block->barrier_time);
  return times;
}

static void settle_fence(Lane* lane) {
  if (lane->fence_time == 0) return;
  Times times = times_met(lane->block);
  times[lane->actor] = lane->fence_time;
  ClockRef made = lane->far ? copy(lane->far) : ClockRef(new Clock);
  cover(*made, lane->block, std::move(times));
  lane->far = made;
  lane->fence_time = 0;
}

void Gathering::add(Lane* lane) {
  settle_fence(lane);
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
  Times& seen = clock_->seen;
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
  known->others.shown.join(known->others.seen);
  lane->far = known;
}

void fence_proxy_global(Lane* lane) {
  World known = known_to(lane);
  ClockRef made = copy(lane->far);
  made->others.shown.join(known.seen);
  lane->far = made;
}

// As a world, what a clock of `cluster` knows.
static World world_of(const Clock& clock, uint32_t cluster) {
  World world = clock.others;
  world.seen.join(cluster, clock.seen);
  if (!clock.shown.empty()) world.shown.join(cluster, clock.shown);
  return world;
}

World known_to(Lane* lane) {
  lane->block->cluster->fine = true;
  Gathering all;
  all.add(lane);
  lane->far = all.snapshot();
  return world_of(*lane->far, lane->block->cluster->number);
}

World fenced_by(Lane* lane) {
  settle_fence(lane);
  World world;
  if (lane->block->far) world = lane->block->far->fenced;
  if (lane->far) world.join(lane->far->fenced);
  return world;
}

// Adds `world` to what a clock of `cluster` knows.
static void add_world(Clock& clock, const World& world, uint32_t cluster) {
  clock.others.join(world);
  if (const Times* own = world.seen.of(cluster)) raise(clock.seen, *own);
  if (const Times* own = world.shown.of(cluster)) raise(clock.shown, *own);
}

void learn(Lane* lane, const World& world) {
  Block* block = lane->block;
  if (world.empty() || (lane->far && lane->far->others.covers(world))) return;
  if (block->far && block->far->others.covers(world)) return;
  block->cluster->fine = true;
  ClockRef made = lane->far ? copy(lane->far) : ClockRef(new Clock);
  add_world(*made, world, block->cluster->number);
  lane->far = made;
}

void pend(Lane* lane, const World& world) {
  Block* block = lane->block;
  if (world.empty() || (lane->far && lane->far->pending.covers(world))) return;
  if (block->far && block->far->pending.covers(world)) return;
  block->cluster->fine = true;
  ClockRef made = lane->far ? copy(lane->far) : ClockRef(new Clock);
  made->pending.join(world);
  lane->far = made;
}

void fence_memory(Lane* lane) {
  Block* block = lane->block;
  Cluster* cluster = block->cluster;
  cluster->fine = true;
  bool met = true;  // nobody of its warp since the block last met
  for (uint32_t time : lane->known) met &= time <= block->barrier_time;
  if (met && !lane->far) {
    // What most fences are: noted only, for when the threads of the block meet next.
    lane->fence_time = cluster->time++;
    if (!block->far || block->far->pending.empty()) return;
    if (!(block->fence_of == block->far)) {
      block->fence_of = block->far;
      block->fence_finds = ClockRef(new Clock);
      add_world(*block->fence_finds, block->far->pending, cluster->number);
    }
    lane->far = block->fence_finds;
    return;
  }
  Gathering all;
  all.add(lane);
  ClockRef made = all.snapshot();
  World found = made->pending;
  add_world(*made, found, cluster->number);
  made->fenced.join(world_of(*made, cluster->number));
  lane->far = made;
}

template <class Holds>
static bool either(const Lane* lane, Holds holds) {
  return (lane->far && holds(*lane->far)) || (lane->block->far && holds(*lane->block->far));
}

bool ordered(const Lane* lane, uint32_t cluster, unsigned actor, uint32_t time, bool stores) {
  if (cluster == lane->block->cluster->number && knows(lane, actor, time)) return true;
  return either(lane, [&](const Clock& clock) {
    return clock.others.seen.holds(cluster, actor, time) || (stores && clock.pending.seen.holds(cluster, actor, time));
  });
}

bool ordered_shown(const Lane* lane, uint32_t cluster, unsigned actor, uint32_t time) {
  if (cluster == lane->block->cluster->number && knows_shown(lane, actor, time)) return true;
  return either(lane, [&](const Clock& clock) { return clock.others.shown.holds(cluster, actor, time); });
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
  Times fenced;
  for (Lane& lane : block->lanes) {
    if (lane.fence_time == 0) continue;
    if (fenced.empty()) fenced = times_met(block);
    fenced[lane.actor] = lane.fence_time;
    lane.fence_time = 0;
  }
  if (!fenced.empty()) {
    ClockRef made = block->far ? copy(block->far) : ClockRef(new Clock);
    cover(*made, block, std::move(fenced));
    block->far = made;
  }
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
    settle_fence(&lanes[__builtin_ctz(left)]);
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
