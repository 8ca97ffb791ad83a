// Atomic read-modify-write operations on global and shared memory.
#include <string.h>

#include "float_types.h"
#include "machine.h"

namespace emu {
namespace {

template <class T>
T take(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
T integer(int operation, T old, T value, T compare) {
  switch (operation) {
    case EMU_ATOMIC_ADD:
      return T(uint64_t(old) + uint64_t(value));
    case EMU_ATOMIC_COMPARE:
      return old == compare ? value : old;
    case EMU_ATOMIC_MIN:
      return old < value ? old : value;
    case EMU_ATOMIC_MAX:
      return old < value ? value : old;
    case EMU_ATOMIC_INCREMENT:
      return old >= value ? T(0) : T(old + 1);
    case EMU_ATOMIC_DECREMENT:
      return old == 0 || old > value ? value : T(old - 1);
    case EMU_ATOMIC_AND:
      return old & value;
    case EMU_ATOMIC_OR:
      return old | value;
    case EMU_ATOMIC_XOR:
      return old ^ value;
    default:
      return value;
  }
}

uint16_t add_half(uint16_t a, uint16_t b) { return float_to_half(half_to_float(a) + half_to_float(b)); }
uint16_t add_bfloat(uint16_t a, uint16_t b) { return float_to_bfloat(bfloat_to_float(a) + bfloat_to_float(b)); }

// The new value of a memory cell, as bits. Floating-point types know exchange, compare (by bits) and add.
uint64_t updated(int operation, int type, uint64_t old, uint64_t value, uint64_t compare) {
  if (type >= EMU_F32 && type != EMU_U16 && operation != EMU_ATOMIC_ADD) {
    return operation == EMU_ATOMIC_COMPARE ? (old == compare ? value : old) : value;
  }
  switch (type) {
    case EMU_I32:
      return uint32_t(integer(operation, take<int32_t>(old), take<int32_t>(value), take<int32_t>(compare)));
    case EMU_U32:
      return integer(operation, take<uint32_t>(old), take<uint32_t>(value), take<uint32_t>(compare));
    case EMU_I64:
      return uint64_t(integer(operation, int64_t(old), int64_t(value), int64_t(compare)));
    case EMU_U64:
      return integer(operation, old, value, compare);
    case EMU_U16:
      return integer(operation, uint16_t(old), uint16_t(value), uint16_t(compare));
    case EMU_F32:
      return float_to_bits(take<float>(old) + take<float>(value));
    case EMU_F64: {
      double sum = take<double>(old) + take<double>(value);
      uint64_t bits;
      memcpy(&bits, &sum, 8);
      return bits;
    }
    case EMU_F16:
      return add_half(uint16_t(old), uint16_t(value));
    case EMU_BF16:
      return add_bfloat(uint16_t(old), uint16_t(value));
    case EMU_F16X2:
      return add_half(uint16_t(old), uint16_t(value)) | uint64_t(add_half(uint16_t(old >> 16), uint16_t(value >> 16)))
                                                            << 16;
    default:
      return add_bfloat(uint16_t(old), uint16_t(value)) |
             uint64_t(add_bfloat(uint16_t(old >> 16), uint16_t(value >> 16))) << 16;
  }
}

template <class Word>
uint64_t apply(int operation, int type, void* pointer, uint64_t value, uint64_t compare) {
  auto cell = static_cast<Word*>(pointer);
  Word old = __atomic_load_n(cell, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(cell, &old, Word(updated(operation, type, old, value, compare)), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
  return old;
}

unsigned size_of(int type) {
  switch (type) {
    case EMU_F16:
    case EMU_BF16:
    case EMU_U16:
      return 2;
    case EMU_I64:
    case EMU_U64:
    case EMU_F64:
      return 8;
    default:
      return 4;
  }
}

}  // namespace

void check_addition(Lane* lane, float* sum, const void* pc) {
  find_at(lane, sum, false);
  check_access(lane, sum, 4, kRead | kWrite | kAtomic | kAligned, pc);
}

void add_to(Worker* worker, float* sum, float value) {
  InOrder order(worker);
  apply<uint32_t>(EMU_ATOMIC_ADD, EMU_F32, sum, float_to_bits(value), 0);
}

}  // namespace emu

using namespace emu;

extern "C" uint64_t emu_atomic(int operation, int type, void* pointer, uint64_t value, uint64_t compare) {
  Lane* lane = current;
  unsigned bytes = size_of(type);
  // A thread that spins on an atomic must let others run.
  if ((++lane->worker->counters.atomics & 63) == 0) lane->worker->poll(EMU_PC);
  InOrder order(lane->worker);
  if (lane->worker->launch->checks) {
    find_at(lane, pointer, false);
    check_access(lane, pointer, bytes, kRead | kWrite | kAtomic | kAligned, EMU_PC);
    leave_at(lane, pointer, fenced_by(lane), false);
  }
  uint64_t old = bytes == 2   ? apply<uint16_t>(operation, type, pointer, value, compare)
                 : bytes == 4 ? apply<uint32_t>(operation, type, pointer, value, compare)
                              : apply<uint64_t>(operation, type, pointer, value, compare);
  // What has come since the check, stored by a block on another OS thread.
  find_at(lane, pointer, false);
  return old;
}

extern "C" void emu_fence() {
  if (current->worker->launch->checks) fence_memory(current);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

extern "C" void emu_fence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
