// Who has seen what: vector clocks over the actors of a cluster, for the checks of kernels that synchronise by more
// than
// __syncthreads and __syncwarp.
//
// Actors are the threads, and beyond them what reads or writes shared memory asynchronously: the copies that arrive on
// an mbarrier, the wgmma of a warpgroup, the TMA stores of a thread. A clock says of each actor up to which time its
// accesses are known, and up to which a proxy fence has shown its ordinary writes to the asynchronous proxy.
//
// Between clusters, which meet in global memory alone, it is the causality order of the PTX memory model. What a thread
// knows is all that precedes it. A release (atomic_add_release, store_release) leaves at its address all that its
// thread knows; whoever acquires there (load_acquire, wait_for) knows it too. Atomics without either leave what a fence
// (__threadfence) before them has covered, in this thread or in one that it has met since, and what they find counts
// from the next fence on, of this thread or of one that meets it: fences are sequentially consistent. Until then it
// orders stores alone, which depend on what was read. Read-modify-writes add to what lies there, other stores replace
// it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <utility>
#include <vector>

#include "world.h"

namespace emu {

struct Block;
struct Cluster;
struct Lane;

enum ActorKind { kThreadActor, kCopies, kWarpgroupReads, kStores };

// An actor that is no thread: `value` is the offset of an mbarrier, a warpgroup's number or a thread's.
struct Actor {
  ActorKind kind;
  const Block* block;
  unsigned value;
};

struct Clock {
  unsigned uses = 0;
  Times seen, shown;
  World others;   // what is known of other clusters
  World fenced;   // what fences have covered
  World pending;  // what atomics have found, which counts from the next fence on

  void join(const Clock& other);
};

// Counts its references itself: clocks never leave their OS thread.
class ClockRef {
 public:
  ClockRef() = default;
  explicit ClockRef(Clock* clock) : clock_(clock) { ++clock_->uses; }
  ClockRef(const ClockRef& other) : clock_(other.clock_) {
    if (clock_) ++clock_->uses;
  }
  ClockRef(ClockRef&& other) noexcept : clock_(std::exchange(other.clock_, nullptr)) {}
  ClockRef& operator=(ClockRef other) noexcept {
    std::swap(clock_, other.clock_);
    return *this;
  }
  ~ClockRef() {
    if (clock_ && --clock_->uses == 0) delete clock_;
  }
  Clock* operator->() const { return clock_; }
  Clock& operator*() const { return *clock_; }
  explicit operator bool() const { return clock_ != nullptr; }
  bool operator==(const ClockRef& other) const { return clock_ == other.clock_; }

 private:
  Clock* clock_ = nullptr;
};

// The two joined; one of them itself where the other adds nothing.
ClockRef joined(const ClockRef& a, const ClockRef& b);

// What those know together who have come to a synchronisation.
class Gathering {
 public:
  // `lane` comes; what it does from now on is later.
  void add(Lane* lane);
  // What `actor` did up to `time` is known too.
  void add(unsigned actor, uint32_t time);
  // What has been gathered, as it is now.
  ClockRef snapshot() const;
  void clear() { *this = Gathering(); }

 private:
  ClockRef clock_, last_lane_, last_block_;
  const Block* filled_ = nullptr;
  uint32_t filled_time_ = 0;
};

// Makes `lane` know what `clock` says.
void acquire(Lane* lane, const ClockRef& clock);
// That `actor`, no other, is known up to `time`.
ClockRef clock_of(unsigned actor, uint32_t time);
// Shows all that `lane` knows to the asynchronous proxy.
void fence_proxy(Lane* lane);
// Whether `lane` has seen what `actor` did at `time`, and whether a proxy fence lies in between too.
bool knows(const Lane* lane, unsigned actor, uint32_t time);
bool knows_shown(const Lane* lane, unsigned actor, uint32_t time);
// All that `lane` knows now, for others to learn; and what fences have covered of it.
World known_to(Lane* lane);
World fenced_by(Lane* lane);
// Makes `lane` know what has been released to it; or, at the next fence, what it has found by atomics.
void learn(Lane* lane, const World& world);
void pend(Lane* lane, const World& world);
// A fence of the memory of all blocks.
void fence_memory(Lane* lane);
// Shows all that `lane` knows of global memory to the asynchronous proxy.
void fence_proxy_global(Lane* lane);
// Whether an access in global memory is ordered after what an actor of a cluster did at `time`, a store by what it
// depends on too; and whether a proxy fence lies in between.
bool ordered(const Lane* lane, uint32_t cluster, unsigned actor, uint32_t time, bool stores);
bool ordered_shown(const Lane* lane, uint32_t cluster, unsigned actor, uint32_t time);
// All threads of the block meet, as they have not since the block's `barrier_time`.
void join_block(Block* block);
// The lanes of `mask` in a warp meet.
void join_far(Lane* lanes, unsigned mask);

unsigned new_actor(Cluster* cluster, ActorKind kind, const Block* block, unsigned value);
// Names an actor, for messages.
void describe_actor(const Cluster* cluster, unsigned actor, char* text, size_t size);

}  // namespace emu
