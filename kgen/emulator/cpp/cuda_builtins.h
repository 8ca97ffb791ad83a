// The parts of CUDA C++ that are language rather than library: qualifiers, built-in variables, barriers, caching loads,
// atomics.
#pragma once

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(n)
#define __block_size__(...)
#define __grid_constant__
#define __CUDACC__ 13
#define __CUDA_ARCH__ 900
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define EMU_INLINE inline __attribute__((always_inline))

EMU_INLINE uint3 emu_index3(int which) { return {emu_index(which, 0), emu_index(which, 1), emu_index(which, 2)}; }
#define threadIdx (emu_index3(EMU_THREAD))
#define blockIdx (emu_index3(EMU_BLOCK))
#define blockDim (dim3(emu_index3(EMU_BLOCK_DIM)))
#define gridDim (dim3(emu_index3(EMU_GRID_DIM)))
constexpr int warpSize = 32;

#undef assert
#define assert(condition) ((condition) ? void() : emu_trap("assertion failed: " #condition))
EMU_INLINE void __trap() { emu_trap("__trap"); }
EMU_INLINE void __brkpt() {}

EMU_INLINE void __syncthreads(int line = __builtin_LINE()) { emu_barrier(EMU_BARRIER_PLAIN, 0, line); }
EMU_INLINE int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return emu_barrier(EMU_BARRIER_OR, predicate, line);
}
EMU_INLINE int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return emu_barrier(EMU_BARRIER_AND, predicate, line);
}
EMU_INLINE int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return emu_barrier(EMU_BARRIER_COUNT, predicate, line);
}
EMU_INLINE void __syncwarp(unsigned mask = 0xffffffffu) { emu_sync_warp(mask); }
// Blocks run on several OS threads: these order what they write for each other.
EMU_INLINE void __threadfence() { emu_fence(); }
EMU_INLINE void __threadfence_block() { emu_fence_block(); }
EMU_INLINE void __threadfence_system() { emu_fence(); }
EMU_INLINE void __nanosleep(unsigned) { emu_yield(); }
EMU_INLINE long long clock64() { return static_cast<long long>(emu_clock()); }
EMU_INLINE int clock() { return static_cast<int>(emu_clock()); }

EMU_INLINE size_t __cvta_generic_to_shared(const void* pointer) { return emu_shared_address(pointer); }
EMU_INLINE void* __cvta_shared_to_generic(size_t address) {
  return emu_dynamic_shared() + (address - emu_shared_address(emu_dynamic_shared()));
}

// Loads and stores with a cache hint are plain ones here.
#define EMU_LOAD(name)            \
  template <class T>              \
  EMU_INLINE T name(const T* p) { \
    return *p;                    \
  }
#define EMU_STORE(name)                                                           \
  template <class T>                                                              \
  EMU_INLINE void name(T* p, std::remove_cv_t<std::enable_if_t<true, T>> value) { \
    *p = value;                                                                   \
  }
EMU_LOAD(__ldg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldlu)
EMU_LOAD(__ldcv)
EMU_STORE(__stwb)
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwt)
#undef EMU_LOAD
#undef EMU_STORE

namespace emu {

template <class To, class From>
EMU_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast between equal sizes");
  return __builtin_bit_cast(To, from);
}

// The bits of a value of 1 to 8 bytes, and back.
template <class T>
EMU_INLINE uint64_t to_bits(T value) {
  if constexpr (sizeof(T) == 8) return bit_cast<uint64_t>(value);
  if constexpr (sizeof(T) == 4) return bit_cast<uint32_t>(value);
  if constexpr (sizeof(T) == 2) return bit_cast<uint16_t>(value);
  if constexpr (sizeof(T) == 1) return bit_cast<uint8_t>(value);
}
template <class T>
EMU_INLINE T from_bits(uint64_t bits) {
  if constexpr (sizeof(T) == 8) return bit_cast<T>(bits);
  if constexpr (sizeof(T) == 4) return bit_cast<T>(uint32_t(bits));
  if constexpr (sizeof(T) == 2) return bit_cast<T>(uint16_t(bits));
  if constexpr (sizeof(T) == 1) return bit_cast<T>(uint8_t(bits));
}

template <class T>
EMU_INLINE T atomic(int operation, int type, T* p, T value, T compare = T()) {
  return from_bits<T>(emu_atomic(operation, type, p, to_bits(value), to_bits(compare)));
}

}  // namespace emu

#define EMU_ATOMIC(name, operation, T, type) \
  EMU_INLINE T name(T* p, T value) { return emu::atomic<T>(operation, type, p, value); }
#define EMU_ATOMIC_INTEGERS(name, operation)      \
  EMU_ATOMIC(name, operation, int, EMU_I32)       \
  EMU_ATOMIC(name, operation, unsigned, EMU_U32)  \
  EMU_ATOMIC(name, operation, long long, EMU_I64) \
  EMU_ATOMIC(name, operation, unsigned long long, EMU_U64)
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD, int, EMU_I32)
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD, unsigned, EMU_U32)
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD, unsigned long long, EMU_U64)
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD, float, EMU_F32)
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD, double, EMU_F64)
EMU_ATOMIC(atomicExch, EMU_ATOMIC_EXCHANGE, int, EMU_I32)
EMU_ATOMIC(atomicExch, EMU_ATOMIC_EXCHANGE, unsigned, EMU_U32)
EMU_ATOMIC(atomicExch, EMU_ATOMIC_EXCHANGE, unsigned long long, EMU_U64)
EMU_ATOMIC(atomicExch, EMU_ATOMIC_EXCHANGE, float, EMU_F32)
EMU_ATOMIC_INTEGERS(atomicMin, EMU_ATOMIC_MIN)
EMU_ATOMIC_INTEGERS(atomicMax, EMU_ATOMIC_MAX)
EMU_ATOMIC_INTEGERS(atomicAnd, EMU_ATOMIC_AND)
EMU_ATOMIC_INTEGERS(atomicOr, EMU_ATOMIC_OR)
EMU_ATOMIC_INTEGERS(atomicXor, EMU_ATOMIC_XOR)
EMU_ATOMIC(atomicInc, EMU_ATOMIC_INCREMENT, unsigned, EMU_U32)
EMU_ATOMIC(atomicDec, EMU_ATOMIC_DECREMENT, unsigned, EMU_U32)
EMU_INLINE int atomicSub(int* p, int value) { return atomicAdd(p, int(0u - unsigned(value))); }
EMU_INLINE unsigned atomicSub(unsigned* p, unsigned value) { return atomicAdd(p, 0u - value); }
#define EMU_ATOMIC_CAS(T, type)                                         \
  EMU_INLINE T atomicCAS(T* p, T compare, T value) {                    \
    return emu::atomic<T>(EMU_ATOMIC_COMPARE, type, p, value, compare); \
  }
EMU_ATOMIC_CAS(int, EMU_I32)
EMU_ATOMIC_CAS(unsigned, EMU_U32)
EMU_ATOMIC_CAS(unsigned short, EMU_U16)
EMU_ATOMIC_CAS(unsigned long long, EMU_U64)
#undef EMU_ATOMIC
#undef EMU_ATOMIC_INTEGERS
#undef EMU_ATOMIC_CAS
