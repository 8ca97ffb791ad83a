// The access checks: every load and store of a checked kernel calls one of the hooks below.
//
// The kernel is compiled with -fsanitize=thread and not linked with its runtime: these functions take its place.
#include <stdio.h>
#include <string.h>

#include "machine.h"

namespace emu {

int find_buffer(Worker* worker, uintptr_t address, unsigned bytes) {
  const Buffer* buffers = worker->launch->buffers;
  auto holds = [&](const Buffer& buffer) {
    return address - buffer.address < buffer.bytes && address - buffer.address + bytes <= buffer.bytes;
  };
  if (worker->last_buffer < worker->launch->buffer_count && holds(buffers[worker->last_buffer])) {
    return int(worker->last_buffer);
  }
  for (unsigned i = 0; i < worker->launch->buffer_count; ++i) {
    if (holds(buffers[i])) {
      worker->last_buffer = i;
      return int(i);
    }
  }
  return -1;
}

void describe_address(Worker* worker, uintptr_t address, char* text, size_t size) {
  const Launch* launch = worker->launch;
  const Buffer* nearest = nullptr;
  uint64_t distance = ~uint64_t(0);
  for (uint64_t i = 0; i < launch->buffer_count; ++i) {
    const Buffer& buffer = launch->buffers[i];
    uint64_t away = address < buffer.address ? buffer.address - address : address - buffer.address;
    if (address >= buffer.address) away = away >= buffer.bytes ? away - buffer.bytes : 0;
    if (away < distance) {
      distance = away;
      nearest = &buffer;
    }
  }
  if (address < 4096) {
    snprintf(text, size, "address 0x%lx, a null pointer", (unsigned long)address);
  } else if (nearest == nullptr || distance > (1u << 26)) {
    snprintf(text, size, "address 0x%lx, which is near no argument", (unsigned long)address);
  } else {
    snprintf(text, size, "byte offset %lld of %s, which has %llu bytes", (long long)(address - nearest->address),
             nearest->name, (unsigned long long)nearest->bytes);
  }
}

static bool is_writable_elsewhere(const Launch* launch, uintptr_t address, unsigned bytes) {
  for (uint64_t i = 0; i < launch->buffer_count; ++i) {
    const Buffer& buffer = launch->buffers[i];
    if (buffer.writable && address >= buffer.address && address + bytes <= buffer.address + buffer.bytes) return true;
  }
  return false;
}

// Whether a thread of the cluster that has waited for the kernel before this one has met this one since.
static bool has_waited(Lane* lane) {
  const Cluster* cluster = lane->block->cluster;
  for (unsigned rank = 0; rank < cluster->size; ++rank) {
    for (const Lane& other : lane->worker->blocks[cluster->first + rank].lanes) {
      if (other.grid_time == 0 || !knows(lane, other.actor, other.grid_time)) continue;
      lane->grid_time = other.grid_time;
      return true;
    }
  }
  return false;
}

void check_buffer(Lane* lane, uintptr_t address, unsigned bytes, int access, const void* pc) {
  Worker* worker = lane->worker;
  Launch* launch = worker->launch;
  const char* verb = !(access & kWrite) ? "reads" : access & kRead ? "updates" : "writes";
  char where[256];
  int found = find_buffer(worker, address, bytes);
  if (__builtin_expect(found < 0, 0)) {
    Session* session = worker->session;
    if (address >= session->image_begin && address < session->image_end) return;  // a constant or global of the kernel
    if (worker->stacks.contains(address)) fail(lane, pc, "%s %u bytes of another thread's local memory", verb, bytes);
    describe_address(worker, address, where, sizeof(where));
    fail(lane, pc, "out of bounds: %s %u bytes at %s", verb, bytes, where);
  }
  const Buffer& buffer = launch->buffers[found];
  uint64_t offset = address - buffer.address;
  if ((access & kWrite) && !buffer.writable && !is_writable_elsewhere(launch, address, bytes)) {
    fail(lane, pc, "%s %u bytes at byte offset %llu of %s, which is an input", verb, bytes, (unsigned long long)offset,
         buffer.name);
  }
  if (unsigned char* written = worker->session->written[found]) {
    if (access & kRead) {
      for (unsigned i = 0; i < bytes; ++i) {
        if (written[offset + i]) continue;
        fail(lane, pc, "%s %u bytes at byte offset %llu of %s, which nothing has written yet", verb, bytes,
             (unsigned long long)offset, buffer.name);
      }
    }
    if (access & kWrite) memset(written + offset, 1, bytes);
  }
  if (__builtin_expect(worker->launch->pdl && lane->grid_time == 0, 0) && !has_waited(lane)) {
    fail(lane, pc,
         "%s %u bytes at byte offset %llu of %s before griddepcontrol_wait: the kernel before may still use it", verb,
         bytes, (unsigned long long)offset, buffer.name);
  }
  if (worker->session->shadows[found] != nullptr && !(access & kLater)) {
    worker->session->shadows[found]->access(lane, address, bytes, access, buffer, pc);
  }
}

void check_order(Lane* lane, uintptr_t address, unsigned bytes, int access, const void* pc) {
  int found = find_buffer(lane->worker, address, bytes);
  if (found < 0 || lane->worker->session->shadows[found] == nullptr) return;
  lane->worker->session->shadows[found]->access(lane, address, bytes, access, lane->worker->launch->buffers[found], pc);
}

static GlobalShadow* shadow_at(Lane* lane, const void* pointer) {
  if (!lane->worker->launch->checks) return nullptr;
  int found = find_buffer(lane->worker, reinterpret_cast<uintptr_t>(pointer), 1);
  return found < 0 ? nullptr : lane->worker->session->shadows[found];
}

void leave_at(Lane* lane, const void* pointer, const World& world, bool replaces) {
  GlobalShadow* shadow = shadow_at(lane, pointer);
  if (shadow != nullptr) shadow->leave(reinterpret_cast<uintptr_t>(pointer), world, replaces);
}

void find_at(Lane* lane, const void* pointer, bool acquires) {
  GlobalShadow* shadow = shadow_at(lane, pointer);
  if (shadow == nullptr) return;
  World found = shadow->find(reinterpret_cast<uintptr_t>(pointer));
  (acquires ? learn : pend)(lane, found);
}

void check_global(Lane* lane, uintptr_t address, unsigned bytes, int access, const void* pc) {
  Worker* worker = lane->worker;
  check_buffer(lane, address, bytes, access, pc);
  std::vector<Traffic>& traffic = lane->block->traffic;
  if (!traffic.empty()) traffic[lane->warp->number].record(lane->lane, address, bytes, false, pc);
  if (access & kRead) worker->counters.global_load_bytes += bytes;
  if (access & kWrite) worker->counters.global_store_bytes += bytes;
}

inline __attribute__((always_inline)) void check(Lane* lane, const void* pointer, unsigned bytes, int access,
                                                 const void* pc) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  if (__builtin_expect(address - reinterpret_cast<uintptr_t>(lane->stack) < kStackBytes, 1)) return;
  if ((access & kAligned) && __builtin_expect(address % bytes != 0, 0)) {
    char where[256];
    Block* block = lane->block;
    uintptr_t offset = address - reinterpret_cast<uintptr_t>(block->arena);
    if (offset < kArenaBytes) {
      snprintf(where, sizeof(where), "offset %d of shared memory", int(offset) - int(kArenaStart));
    } else {
      describe_address(lane->worker, address, where, sizeof(where));
    }
    fail(lane, pc, "misaligned: %s %u bytes at %s", access & kWrite ? "writes" : "reads", bytes, where);
  }
  Block* block = lane->block;
  uintptr_t offset = address - reinterpret_cast<uintptr_t>(block->arena);
  if (offset >= kArenaBytes) return check_global(lane, address, bytes, access, pc);
  if (__builtin_expect(offset < kArenaStart || offset + bytes > block->static_end, 0)) {
    fail(lane, pc, "out of bounds of shared memory: %s %u bytes at offset %d, the block has %u bytes",
         access & kWrite ? "writes" : "reads", bytes, int(offset) - int(kArenaStart), block->static_end - kArenaStart);
  }
  block->shadow.access(lane, unsigned(offset), bytes, access, pc);
  if (!block->traffic.empty()) block->traffic[lane->warp->number].record(lane->lane, offset, bytes, true, pc);
  if (access & kRead) lane->worker->counters.shared_load_bytes += bytes;
  if (access & kWrite) lane->worker->counters.shared_store_bytes += bytes;
}

void check_access(Lane* lane, const void* pointer, unsigned bytes, int access, const void* pc) {
  check(lane, pointer, bytes, access, pc);
}

}  // namespace emu

using namespace emu;

#define EMU_HOOKS(N)                                                                                   \
  void __tsan_read##N(void* p) { check(current, p, N, kRead | kAligned, EMU_PC); }                     \
  void __tsan_write##N(void* p) { check(current, p, N, kWrite | kAligned, EMU_PC); }                   \
  void __tsan_unaligned_read##N(void* p) { check(current, p, N, kRead, EMU_PC); }                      \
  void __tsan_unaligned_write##N(void* p) { check(current, p, N, kWrite, EMU_PC); }                    \
  void __tsan_volatile_read##N(void* p) {                                                              \
    check(current, p, N, kRead | kAtomic | kAligned, EMU_PC);                                          \
    find_at(current, p, false);                                                                        \
    current->worker->polled(EMU_PC);                                                                   \
  }                                                                                                    \
  void __tsan_volatile_write##N(void* p) {                                                             \
    check(current, p, N, kWrite | kAtomic | kAligned, EMU_PC);                                         \
    leave_at(current, p, fenced_by(current), true);                                                    \
    current->worker->polls = 0;                                                                        \
  }                                                                                                    \
  void __tsan_unaligned_volatile_read##N(void* p) { check(current, p, N, kRead | kAtomic, EMU_PC); }   \
  void __tsan_unaligned_volatile_write##N(void* p) { check(current, p, N, kWrite | kAtomic, EMU_PC); } \
  void __tsan_read_write##N(void* p) { check(current, p, N, kRead | kWrite | kAligned, EMU_PC); }      \
  void __tsan_unaligned_read_write##N(void* p) { check(current, p, N, kRead | kWrite, EMU_PC); }

extern "C" {
EMU_HOOKS(1)
EMU_HOOKS(2)
EMU_HOOKS(4)
EMU_HOOKS(8)
EMU_HOOKS(16)

void __tsan_read_range(void* p, unsigned long bytes) { check(current, p, unsigned(bytes), kRead, EMU_PC); }
void __tsan_write_range(void* p, unsigned long bytes) { check(current, p, unsigned(bytes), kWrite, EMU_PC); }
// What clang makes of copies.
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  check(current, from, unsigned(bytes), kRead, EMU_PC);
  check(current, to, unsigned(bytes), kWrite, EMU_PC);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  check(current, from, unsigned(bytes), kRead, EMU_PC);
  check(current, to, unsigned(bytes), kWrite, EMU_PC);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  check(current, to, unsigned(bytes), kWrite, EMU_PC);
  return memset(to, value, bytes);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
