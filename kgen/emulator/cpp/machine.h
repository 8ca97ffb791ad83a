// The emulated machine: launch > cluster > block > warp > lane, and the worker (an OS thread) that runs one cluster at
// a time.
//
// Lanes are fibers and give up control only inside the runtime, so nothing in a cluster needs a lock. Blocks of a
// cluster share a worker: what joins them later (distributed shared memory, cluster barriers) finds them in
// `Worker::blocks`. A 32-bit shared address holds the block's rank in the cluster in its top byte and the offset into
// that block's arena.
#pragma once

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <vector>

#include "abi.h"
#include "fiber.h"
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
};

struct Counters {
  uint64_t mma, ldmatrix, stmatrix, matrix_wavefronts, matrix_ideal_wavefronts, cp_async, cp_async_bytes, barriers,
      warp_syncs, shuffles, atomics, global_load_bytes, global_store_bytes, shared_load_bytes, shared_store_bytes,
      switches;
};

// One launch, as Python fills it in (kernel.py): keep both in step.
struct Launch {
  void (*entry)(void**);
  void** arguments;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t shared_bytes;
  int32_t checks, async_mode, threads, traffic;
  uint64_t seed;
  double timeout;
  const Buffer* buffers;
  uint64_t buffer_count;
  Counters counters;
  SiteTotal* sites;  // room for `site_capacity`; filled in if `traffic` is set
  uint64_t site_capacity, site_count;
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
};

struct Block;
struct Warp;
struct Worker;

struct Copy {
  unsigned char* destination;
  const unsigned char* source;
  int bytes, valid;
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
  // The time up to which this lane has seen what each lane of its warp did (checks only).
  uint32_t known[32];
};

struct Warp {
  unsigned number, members, runnable, waiting, exited;
  Lane* lanes;
};

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
  // Clock of the access checks: `time` grows with every synchronisation; all threads have seen all up to
  // `barrier_time`.
  uint32_t time, barrier_time;
  SharedShadow shadow;
  std::vector<Traffic> traffic;  // of each warp
};

// What all workers of a launch share.
struct Session {
  Launch* launch;
  uintptr_t image_begin, image_end;  // the kernel's shared object
  std::vector<unsigned char*>
      written;  // for each buffer a byte for each of its bytes, or null if it starts initialised
  std::atomic<uint64_t> next_cluster{0};
  std::atomic<bool> stop{false};
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
};

struct Worker {
  Session* session;
  Launch* launch;
  Stacks stacks;
  uint64_t random_state;
  std::vector<Block> blocks;
  unsigned live_lanes;
  Warp* warp;  // the one being run
  Context main;
  sigjmp_buf escape;
  volatile bool in_fiber;
  unsigned last_buffer;
  Counters counters;
  SiteTotals sites;

  uint64_t random();
  bool prepare();
  void run_cluster(uint64_t cluster);
  // Runs whoever can run next; called by a lane that waits or has ended.
  void yield_to_next(Context& from);
  // The next lane to run; reports a deadlock if there is none. Null when every lane has ended.
  Lane* pick();
};

// The lane that this OS thread runs. Fibers stay on their OS thread.
extern __thread Lane* current __attribute__((tls_model("initial-exec")));

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
void finish_lane(Lane* lane);

// A buffer that contains the `bytes` at `address`, or -1.
int find_buffer(Worker* worker, uintptr_t address, unsigned bytes);
// Says where `address` lies, for messages, into `text`.
void describe_address(Worker* worker, uintptr_t address, char* text, size_t size);

enum Access { kRead = 1, kWrite = 2, kAtomic = 4, kAligned = 8 };
// Checks an access of `bytes` at `pointer` by `lane` (only called with checks on).
void check_access(Lane* lane, const void* pointer, unsigned bytes, int access, const void* pc);
// Checks the source of an asynchronous copy.
void check_global(Lane* lane, uintptr_t address, unsigned bytes, int access, const void* pc);
// The address of `bytes` at a 32-bit shared address, after the bounds check that every matrix instruction and copy
// gets.
unsigned char* shared_pointer(Lane* lane, unsigned address, unsigned bytes, const char* what, const void* pc);
// Lands the first `end` of a lane's asynchronous copies.
void complete_copies(Lane* lane, size_t end);

}  // namespace emu
