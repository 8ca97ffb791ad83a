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
enum EmuWgmma { EMU_WGMMA_F16, EMU_WGMMA_BF16, EMU_WGMMA_TF32, EMU_WGMMA_E4M3, EMU_WGMMA_E5M2 };
// A or B along M or N; an accumulator of f16; A in registers.
enum EmuWgmmaFlag { EMU_WGMMA_TURN_A = 1, EMU_WGMMA_TURN_B = 2, EMU_WGMMA_HALF = 4, EMU_WGMMA_REGISTERS = 8 };
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

void emu_mbarrier_init(unsigned address, int count);
void emu_mbarrier_init_fence();
// `bytes` are those to expect too.
void emu_mbarrier_arrive(unsigned address, int bytes);
void emu_mbarrier_arrive_remote(unsigned address, unsigned rank);
void emu_mbarrier_wait(unsigned address, unsigned parity);
void emu_named_barrier(int id, int threads, int wait);

void emu_tma_prefetch(const void* map);
// `mask` is 0 if the copy is not multicast.
void emu_tma_load(unsigned destination, const void* map, unsigned barrier, int mask, int rank, int c0, int c1, int c2,
                  int c3, int c4);
void emu_tma_store(const void* map, unsigned source, int rank, int c0, int c1, int c2, int c3, int c4);
void emu_tma_store_commit();
void emu_tma_store_wait(int pending);
void emu_bulk_load(unsigned destination, const void* source, int bytes, unsigned barrier);
void emu_fence_proxy_async();
void emu_fence_proxy_async_global();

unsigned emu_cluster_rank() __attribute__((const));
void emu_cluster_arrive(int release);
void emu_cluster_wait();
unsigned emu_cluster_map(unsigned address, unsigned rank);
EmuWords emu_cluster_load(unsigned address, int bytes);
void emu_cluster_store(unsigned address, int bytes, uint64_t low, uint64_t high);
void emu_cluster_store_async(unsigned address, int bytes, uint64_t low, uint64_t high, unsigned barrier);

// `d` are the registers of the accumulator, which must have an address here: they change when a wait says so.
void emu_wgmma(int kind, int columns, int flags, void* d, uint64_t a, uint64_t b, int accumulate);
void emu_wgmma_registers(int kind, int columns, int flags, void* d, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                         uint64_t b, int accumulate);
void emu_wgmma_fence();
void emu_wgmma_commit();
void emu_wgmma_wait(int pending);

unsigned emu_load_relaxed(const unsigned* p);
int emu_load_acquire(const int* p);
void emu_store_release(int* p, int value);
int emu_atomic_add_release(int* p, int value);
void emu_wait_for(const int* p, int value);

void emu_fence();
void emu_fence_block();
void emu_grid_wait();
void emu_yield();
uint64_t emu_clock();
void emu_trap(const char* message) __attribute__((noreturn));
}
