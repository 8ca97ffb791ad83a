// Fibers: a stack with a guard page for each CUDA thread, and the switch between two of them.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <utility>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace emu {

constexpr size_t kStackBytes = 64 * 1024;
#if defined(__x86_64__)
constexpr size_t kGuardBytes = 4096;
#else
constexpr size_t kGuardBytes = 64 * 1024;  // pages may be as large as this
#endif

// More stacks than these have no guard pages.
constexpr size_t kMaxGuarded = 16384;

// Where a fiber goes on: its saved stack pointer, or a ucontext where we have no assembly.
#if defined(__x86_64__) || defined(__aarch64__)
struct Context {
  void* stack_pointer = nullptr;
};
extern "C" void emu_switch(void** save, void* load);
inline void switch_context(Context& from, Context& to) { emu_switch(&from.stack_pointer, to.stack_pointer); }
#else
struct Context {
  ucontext_t context;
};
inline void switch_context(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
#endif

// Makes `context` one that calls `entry` on the stack [stack, stack + kStackBytes). `entry` must not return.
void start_context(Context& context, char* stack, unsigned color, void (*entry)());

// The stacks of one OS thread, reused from block to block.
class Stacks {
 public:
  Stacks() = default;
  Stacks(Stacks&& other) : base_(std::exchange(other.base_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Stacks& operator=(Stacks&& other) {
    std::swap(base_, other.base_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Stacks() { release(); }
  // Makes room for `count` stacks; false if memory does not suffice.
  bool reserve(size_t count);
  size_t count() const { return count_; }
  char* operator[](size_t i) const { return base_ + i * (kGuardBytes + kStackBytes) + kGuardBytes; }
  bool contains(uintptr_t address) const {
    return address - reinterpret_cast<uintptr_t>(base_) < count_ * (kGuardBytes + kStackBytes);
  }
  // True if `address` lies in a guard page, that is, a stack has overflowed.
  bool in_guard(uintptr_t address) const;

 private:
  void release();
  char* base_ = nullptr;
  size_t count_ = 0;
};

}  // namespace emu
