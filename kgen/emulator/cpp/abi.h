// The C interface between a compiled kernel and the emulator's runtime. Everything passes by value, so that no variable
// of the kernel needs an address (a variable with an address is one the access checks must look at).
#pragma once

#include <stdint.h>

struct EmuWords {
  uint64_t low, high;
};

enum EmuIndex { EMU_THREAD, EMU_BLOCK, EMU_BLOCK_DIM, EMU_GRID_DIM };
enum EmuBarrier { EMU_BARRIER_PLAIN, EMU_BARRIER_OR, EMU_BARRIER_AND, EMU_BARRIER_COUNT };
enum EmuShuffle { EMU_SHUFFLE_INDEX, EMU_SHUFFLE_UP, EMU_SHUFFLE_DOWN, EMU_SHUFFLE_XOR };
enum EmuVote { EMU_VOTE_BALLOT, EMU_VOTE_ANY, EMU_VOTE_ALL };
enum EmuReduce { EMU_REDUCE_ADD, EMU_REDUCE_MIN, EMU_REDUCE_MAX, EMU_REDUCE_AND, EMU_REDUCE_OR, EMU_REDUCE_XOR };
enum EmuMma {
  EMU_MMA_K8_F16_F32,
  EMU_MMA_K8_F16_F16,
  EMU_MMA_K16_F16_F32,
  EMU_MMA_K16_F16_F16,
  EMU_MMA_K16_BF16_F32,
  EMU_MMA_K8_TF32_F32,
  EMU_MMA_K32_S8_S32,
  EMU_MMA_K32_E4M3_F32,
  EMU_MMA_K32_E5M2_F32,
};
enum EmuAtomic {
  EMU_ATOMIC_ADD,
  EMU_ATOMIC_EXCHANGE,
  EMU_ATOMIC_COMPARE,
  EMU_ATOMIC_MIN,
  EMU_ATOMIC_MAX,
  EMU_ATOMIC_INCREMENT,
  EMU_ATOMIC_DECREMENT,
  EMU_ATOMIC_AND,
  EMU_ATOMIC_OR,
  EMU_ATOMIC_XOR,
};
enum EmuType {
  EMU_I32,
  EMU_U32,
  EMU_I64,
  EMU_U64,
  EMU_F32,
  EMU_F64,
  EMU_F16,
  EMU_BF16,
  EMU_F16X2,
  EMU_BF16X2,
  EMU_U16
};

extern "C" {
// `which` is an EmuIndex, `axis` 0 to 2. Constant for the life of a thread, hence the attribute.
unsigned emu_index(int which, int axis) __attribute__((const));
unsigned emu_lane() __attribute__((const));
unsigned char* emu_dynamic_shared() __attribute__((const));
// The block's copy of one `__shared__` declaration; `tag` tells the declarations apart.
void* emu_static_shared(const void* tag, unsigned bytes, unsigned alignment) __attribute__((const));
unsigned emu_shared_address(const void* pointer);

int emu_barrier(int mode, int predicate, int line);
void emu_sync_warp(unsigned mask);
uint64_t emu_shuffle(int mode, unsigned mask, uint64_t value, int operand, int width);
unsigned emu_vote(int mode, unsigned mask, int predicate);
unsigned emu_match_any(unsigned mask, uint64_t value);
unsigned emu_reduce(int mode, int is_signed, unsigned mask, unsigned value);
unsigned emu_active_mask();

void emu_cp_async(unsigned destination, const void* source, int bytes, int valid);
void emu_cp_async_commit();
void emu_cp_async_wait(int pending);

EmuWords emu_ldmatrix(int count, int transposed, unsigned address);
void emu_stmatrix(int count, int transposed, unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3);
EmuWords emu_mma(int kind, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, unsigned d0,
                 unsigned d1, unsigned d2, unsigned d3);
uint64_t emu_atomic(int operation, int type, void* pointer, uint64_t value, uint64_t compare);

void emu_fence();
void emu_yield();
uint64_t emu_clock();
void emu_trap(const char* message) __attribute__((noreturn));
}
