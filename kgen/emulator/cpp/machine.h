// The emulated machine: launch > cluster > block > warp > lane, and the worker (an OS thread) that runs one cluster at
// a time.
//
// Lanes are fibers and give up control only inside the runtime, so nothing in a cluster needs a lock. Of a cooperative
// launch, whose blocks wait for each other, one worker runs all clusters together. A 32-bit shared address holds the
// block's rank in the cluster in its top byte and the offset into that block's arena.
#pragma once

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "abi.h"
#include "clock.h"
#include "fiber.h"
#include "global_shadow.h"
#include "shadow.h"
#include "traffic.h"

namespace emu {

constexpr unsigned kArenaBytes = 256 * 1024;
constexpr unsigned kArenaStart = 1024;  // as on hardware, the first KB is the system's; address 0 is never valid
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kFullMask = 0xffffffffu;

// Memory of the caller that a kernel may touch. Python builds it (kernel.py): keep both in step.
struct Buffer {
  const char* name;
  uint64_t address, bytes;
  int32_t writable, initialized;
  int32_t unit;  // bytes of an element
};

struct Counters {
  uint64_t mma, ldmatrix, stmatrix, matrix_wavefronts, matrix_ideal_wavefronts, cp_async, cp_async_bytes, barriers,
      warp_syncs, shuffles, atomics, wgmma, bulk_copies, bulk_bytes, global_load_bytes, global_store_bytes,
      shared_load_bytes, shared_store_bytes, switches;
};

// One launch, as Python fills it in (kernel.py): keep both in step.
struct Launch {
  void (*entry)(void**);
  void** arguments;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t shared_bytes;
  int32_t checks, async_mode, threads, traffic, cooperative, pdl;
  uint64_t first_cluster, cluster_count;  // to run, of those of the grid
  uint64_t seed;
  double timeout;
  const Buffer* buffers;
  uint64_t buffer_count;
  Counters counters;
  SiteTotal* sites;  // room for `site_capacity`; filled in if `traffic` is set
  uint64_t site_capacity, site_count;
  unsigned char* code_seen;  // for each byte of the kernel's shared object whether a basic block's hook returned to it
  uint64_t code_bytes;
  char error[8192];
};

enum AsyncMode { kEager, kLate, kRandom };
enum WaitKind {
  kRunning,
  kBarrier,
  kSyncWarp,
  kShuffle,
  kVote,
  kMatch,
  kReduce,
  kLdmatrix,
  kStmatrix,
  kMma,
  kWgmma,
  kWgmmaFence,
  kWgmmaCommit,
  kWgmmaWait,
  kMbarrier,
  kNamedBarrier,
  kClusterBarrier,
  kFlag,
};

struct Block;
struct Warp;
struct Warpgroup;
struct Worker;

enum ClusterBarrier : uint8_t { kElsewhere, kArrived, kMet };

struct Copy {
  unsigned char* destination;
  const unsigned char* source;
  int bytes, valid;
  bool done;
};

// How TMA sees a tensor, in the 128 bytes of ptx::TensorMap. Python fills it in (tensor_map.py): keep both in step.
struct TensorMap {
  uint64_t address;
  uint32_t magic, element_bytes, rank, swizzle;
  uint64_t sizes[5], strides[4];  // elements; bytes
  uint32_t box[5], rounds;        // `rounds`: elements are f32, and come as tf32
};
constexpr uint32_t kTensorMapMagic = 0x6d616d74;
static_assert(sizeof(TensorMap) == 120, "within the 128 bytes of a kernel parameter");

// A bulk copy from global to shared memory, or a store to a block of the cluster, under way.
struct Bulk {
  Lane* lane;  // that issued it
  const void* pc;
  TensorMap map;  // of no axes: `bytes` from `source`, or where that is null from `words`
  const unsigned char* source;
  int at[5];
  unsigned destination, bytes, barrier, blocks;  // offsets; ranks in the cluster as a mask
  uint64_t words[2];
};

// A TMA store that nobody has waited for.
struct Store {
  const void* pc;
  TensorMap map;
  int at[5];
  unsigned source;
  uint32_t time;
  bool done;
};

// What a lane waits for, or last did. As one number, so that lanes are quick to compare: equal means the same
// operation.
union Wait {
  struct {
    unsigned mask;  // of the lanes that take part
    uint16_t detail;
    uint16_t kind;  // a WaitKind
  };
  uint64_t key;
};

// The first two cache lines hold what every switch and collective needs.
struct alignas(64) Lane {
  Context context;
  Worker* worker;
  Block* block;
  Warp* warp;
  char* stack;
  unsigned number;  // in the block
  unsigned lane;    // in the warp
  Wait wait;
  const void* pc;  // where it waits
  // What it brings to a collective and takes from it.
  union {
    unsigned word[12];
    uint64_t wide[6];
  } value;
  const unsigned* index[4];  // by EmuIndex
  unsigned thread[3];
  // cp.async: copies not yet waited for, and where each committed group ends.
  std::vector<Copy> copies;
  std::vector<size_t> groups;
  // The same of TMA stores, and the actor that carries them out (0: none yet).
  std::vector<Store> stores;
  std::vector<size_t> store_groups;
  unsigned store_actor;
  // What it polls while it waits for a flag.
  const int* flag;
  int flag_value;
  uint32_t awaited;  // the phase of the barrier it waits for
  ClusterBarrier at_cluster;
  // For the checks: its number as an actor of the cluster (clock.h), the time up to which it has seen what each lane of
  // its warp did, and what it knows of others beyond its block's last barrier.
  unsigned actor;
  uint32_t known[32];
  ClockRef far;
  uint32_t fence_time;  // of its last fence since its block met, if that is not in `far` (0: none)
  uint32_t grid_time;   // when it had waited for the kernel before this one (0: not yet)
};

struct Warp {
  unsigned number, members, runnable, waiting, exited;
  Lane* lanes;
  // wgmma: how many its warpgroup had issued at each commit of this warp not yet waited for, and when the last was.
  struct Group {
    uint64_t issued;
    uint32_t time;
  };
  std::deque<Group> groups;
  bool fenced;
};

// The time at which every thread has started.
constexpr uint32_t kStarted = 1;

struct MBarrier {
  unsigned offset;
  int count, pending;  // arrivals in a phase; still to come in this one
  int64_t bytes;       // expected and not arrived
  uint32_t phase;
  unsigned actor;  // its copies; up to init_time, that it is there
  unsigned init_actor;
  uint32_t init_time;
  bool shown;  // to asynchronous copies
  const void* pc;
  std::vector<Lane*> waiting;
  Gathering arrivals;
  ClockRef ended;  // what was known when the last phase ended
};

struct NamedBarrier {
  unsigned threads, arrived;
  const void* pc;
  uint32_t phase;
  uint32_t lanes[32];  // that have come, by warp
  std::vector<Lane*> waiting;
  Gathering arrivals;
  ClockRef met;
};
constexpr unsigned kNamedBarriers = 16;

struct Block {
  unsigned index[3];
  unsigned rank;  // in the cluster
  unsigned thread_count, warp_count, arrived, exited;
  unsigned ready;  // warps with a runnable lane
  int barrier_mode, barrier_line, barrier_sum, barrier_result;
  const void* barrier_pc;
  Lane* barrier_first;
  unsigned char* arena;
  unsigned static_end;  // end of what the block may use: behind the last `__shared__` declaration met so far
  std::vector<std::pair<const void*, unsigned>> statics;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  Cluster* cluster;
  std::deque<MBarrier> mbarriers;
  std::vector<uint16_t> mbarrier_at;  // by offset / 8: one more than the index in `mbarriers`
  NamedBarrier named[kNamedBarriers];
  std::vector<std::shared_ptr<Warpgroup>> warpgroups;
  // For the checks: all threads have seen all that the block did up to `barrier_time`, and `far` of others.
  uint32_t barrier_time;
  ClockRef far;
  ClockRef fence_of, fence_finds;  // what a thread knows after a fence that knew `fence_of` before, no more
  SharedShadow shadow;
  std::vector<Traffic> traffic;  // of each warp
};

struct Cluster {
  Worker* worker;
  uint32_t number;       // in the launch
  unsigned first, size;  // in Worker::blocks
  unsigned live, arrived;
  uint32_t phase;  // of the cluster's barrier
  std::vector<Lane*> waiting;
  Gathering arrivals;
  ClockRef met;
  // Clock of the access checks: `time` grows with every synchronisation. `fine` once threads have synchronised by more
  // than __syncthreads and __syncwarp.
  uint32_t time;
  bool fine;
  size_t thread_actors;
  std::vector<Actor> actors;  // beyond the threads
  ClockRef join_from, join_with, join_to;
};

// What all workers of a launch share.
struct Session {
  Launch* launch;
  uintptr_t image_begin, image_end;  // the kernel's shared object
  std::vector<unsigned char*>
      written;                         // for each buffer a byte for each of its bytes, or null if it starts initialised
  std::vector<GlobalShadow*> shadows;  // for each buffer, or null if no kernel may write to it
  uint64_t batch;                      // clusters that run together
  std::atomic<uint64_t> next_cluster{0};
  std::atomic<int> running{0};  // workers
  std::atomic<int> idle{0};     // those of them that have only polled for long
  std::atomic<bool> stop{false};
  std::atomic_flag changing = ATOMIC_FLAG_INIT;  // by an atomic
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
};

struct Worker {
  Session* session;
  Launch* launch;
  Stacks stacks;
  uint64_t random_state;
  std::vector<Block> blocks;  // by cluster, then by rank
  std::vector<Cluster> clusters;
  std::vector<Bulk> flying;     // bulk copies under way
  std::vector<Lane*> watching;  // flags
  unsigned live_lanes;
  Warp* warp;  // the one being run
  Context main;
  sigjmp_buf escape;
  volatile bool in_fiber;
  unsigned last_buffer;
  Counters counters;
  // How often lanes have polled since `done`, what was stored and met till then, was less.
  unsigned loads, polls;
  uint64_t done;
  bool idle;
  SiteTotals sites;

  uint64_t random();
  bool prepare();
  // Runs a batch of clusters from number `first` on.
  void run(uint64_t first);
  // Runs whoever can run next; called by a lane that waits or has ended.
  void yield_to_next(Context& from);
  // The next lane to run; reports a deadlock if there is none. Null when every lane has ended.
  Lane* pick();
  // Makes those runnable whose flags have come; true if there are any.
  bool look_at_flags();
  // Lets others run while `current` polls. An error where all have done nothing else for long.
  void poll(const void* pc);
  // The same now and then, for loads, which may be polls.
  void polled(const void* pc) {
    if ((++loads & 15) == 0) poll(pc);
  }

 private:
  void start_block(Block& block, const uint64_t* origin);
};

// The lane that this OS thread runs. Fibers stay on their OS thread.
extern __thread Lane* current __attribute__((tls_model("initial-exec")));

inline bool checks(const Lane* lane) { return lane->worker->launch->checks; }

#define EMU_PC __builtin_return_address(0)

// Ends the launch with a message about `lane` at `pc`. In the message `@[hex]` is a place in the kernel; Python makes
// it a line.
[[noreturn]] void fail(const Lane* lane, const void* pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
// The same without a lane. `session` is told once; later failures are dropped.
[[noreturn]] void fail_block(Worker* worker, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* wait_name(Wait wait);
// `pc` as an offset into the kernel's shared object.
unsigned long code_offset(const Session* session, const void* pc);
void deadlock(Worker* worker);
void block_until_woken(Lane* lane);
void wake(Lane* lane);
void finish_lane(Lane* lane);

// A buffer that contains the `bytes` at `address`, or -1.
int find_buffer(Worker* worker, uintptr_t address, unsigned bytes);
// Says where `address` lies, for messages, into `text`.
void describe_address(Worker* worker, uintptr_t address, char* text, size_t size);

// kLater: what order it is in is checked by check_order.
enum Access { kRead = 1, kWrite = 2, kAtomic = 4, kAligned = 8, kAsynchronous = 16, kLater = 32 };
// Checks an access of `bytes` at `pointer` by `lane` (only called with checks on).
void check_access(Lane* lane, const void* pointer, unsigned bytes, int access, const void* pc);
// Checks an access to global memory, and counts it as a lane's.
void check_global(Lane* lane, uintptr_t address, unsigned bytes, int access, const void* pc);
// Only checks it.
void check_buffer(Lane* lane, uintptr_t address, unsigned bytes, int access, const void* pc);
// Checks that an access within a buffer is ordered with those of other threads.
void check_order(Lane* lane, uintptr_t address, unsigned bytes, int access, const void* pc);
// What an atomic access to a flag leaves for others to learn, before it is done: `replaces` what lies there; and what
// it finds there once it is done, which it learns if it `acquires`.
void leave_at(Lane* lane, const void* pointer, const World& world, bool replaces);
void find_at(Lane* lane, const void* pointer, bool acquires);
// While there is one, no other atomic of the launch is noted or done: they are noted in the order in which they
// happen, for blocks on other OS threads too. A launch that fails may leave it.
class InOrder {
 public:
  explicit InOrder(Worker* worker) : worker_(worker) {
    while (worker->session->changing.test_and_set(std::memory_order_acquire)) {
      if (worker->session->stop) siglongjmp(worker->escape, 1);
    }
  }
  ~InOrder() { worker_->session->changing.clear(std::memory_order_release); }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

 private:
  Worker* worker_;
};
// The address of `bytes` at a 32-bit shared address of this block, after the bounds check that every matrix instruction
// and copy gets.
unsigned char* shared_pointer(Lane* lane, unsigned address, unsigned bytes, const char* what, const void* pc);
// The block of the cluster that a shared address lies in, after the same checks; one that has ended is an error.
Block& block_at(Lane* lane, unsigned address, unsigned bytes, unsigned alignment, const char* what, const void* pc);
// Lands the first `end` of a lane's asynchronous copies.
void complete_copies(Lane* lane, size_t end);

// Barriers (barriers.cpp). The mbarrier at an offset; what bulk copies bring it.
MBarrier& mbarrier_at(Lane* lane, Block& block, unsigned offset, const char* what, const void* pc);
void bytes_arrived(Lane* lane, MBarrier& barrier, unsigned bytes, const void* pc);
void meet_in_cluster(Cluster* cluster);
size_t list_barriers(const Block& block, const Session* session, char* text, size_t size);

// Bulk copies (bulk.cpp). Lands one of those under way, if there are any.
bool land_one(Worker* worker);
// Errors that only show when a thread or its block ends.
void end_bulk(Lane* lane);
void end_block_bulk(Lane* lane);

// wgmma (wgmma.cpp).
void start_warpgroups(Block& block);
void end_wgmma(Lane* lane);

}  // namespace emu
