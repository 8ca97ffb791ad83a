// Context switches for x86-64 and aarch64 (ucontext elsewhere), and the stacks.
#include "fiber.h"

namespace emu {

#if defined(__x86_64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, .-emu_switch
)");

void start_context(Context& context, char* stack, unsigned color, void (*entry)()) {
  // Tops of stacks are staggered: equal offsets in every page would put all of them in the same few cache sets.
  auto top = reinterpret_cast<void**>(stack + kStackBytes - 64 - 192 * (color % 16));
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context.stack_pointer = top;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch, %function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch, .-emu_switch
)");

void start_context(Context& context, char* stack, unsigned color, void (*entry)()) {
  auto top = reinterpret_cast<void**>(stack + kStackBytes - 64 - 192 * (color % 16)) - 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void*>(entry);
  context.stack_pointer = top;
}
#else
void start_context(Context& context, char* stack, unsigned, void (*entry)()) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = stack;
  context.context.uc_stack.ss_size = kStackBytes;
  context.context.uc_link = nullptr;
  makecontext(&context.context, entry, 0);
}
#endif

bool Stacks::reserve(size_t count) {
  if (count <= count_) return true;
  release();
  size_t bytes = count * (kGuardBytes + kStackBytes);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  base_ = static_cast<char*>(memory);
  count_ = count;
  // Each guard page costs two memory mappings, of which Linux gives a process 65,530.
  for (size_t i = 0; i < count && count <= kMaxGuarded; ++i) {
    if (mprotect((*this)[i] - kGuardBytes, kGuardBytes, PROT_NONE) != 0) {
      release();
      return false;
    }
  }
  return true;
}

bool Stacks::in_guard(uintptr_t address) const {
  if (count_ > kMaxGuarded) return false;
  uintptr_t offset = address - reinterpret_cast<uintptr_t>(base_);
  return offset < count_ * (kGuardBytes + kStackBytes) && offset % (kGuardBytes + kStackBytes) < kGuardBytes;
}

void Stacks::release() {
  if (base_ != nullptr) munmap(base_, count_ * (kGuardBytes + kStackBytes));
  base_ = nullptr;
  count_ = 0;
}

}  // namespace emu
