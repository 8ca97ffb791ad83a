// The PTX layer in C++, continued: what came with sm_90, and flags in global memory.
#pragma once

namespace ptx {

struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

}  // namespace ptx

namespace emu {

// The first of the coordinates, or 0 for an axis that there is not.
template <int Rank>
EMU_INLINE int coordinate(const int (&at)[Rank], int axis) {
  static_assert(Rank >= 1 && Rank <= 5, "a tensor map has 1 to 5 axes");
  return axis < Rank ? at[axis < Rank ? axis : 0] : 0;
}

template <int Rank>
EMU_INLINE void tma_load(unsigned destination, const ptx::TensorMap& map, unsigned barrier, int mask,
                         const int (&at)[Rank]) {
  emu_tma_load(destination, &map, barrier, mask, Rank, coordinate(at, 0), coordinate(at, 1), coordinate(at, 2),
               coordinate(at, 3), coordinate(at, 4));
}

template <EmuWgmma Kind, int Columns, int Flags, class Element, int Count>
EMU_INLINE void wgmma(Element (&d)[Count], unsigned long long a, unsigned long long b, bool accumulate) {
  static_assert(sizeof(Element) == 4 && Count == Columns / (Flags & EMU_WGMMA_HALF ? 4 : 2), "wgmma accumulator");
  emu_wgmma(Kind, Columns, Flags, d, a, b, accumulate);
}
template <EmuWgmma Kind, int Columns, int Flags, class Element, int Count>
EMU_INLINE void wgmma(Element (&d)[Count], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
  static_assert(sizeof(Element) == 4 && Count == Columns / (Flags & EMU_WGMMA_HALF ? 4 : 2), "wgmma accumulator");
  emu_wgmma_registers(Kind, Columns, Flags, d, a[0], a[1], a[2], a[3], b, accumulate);
}

}  // namespace emu

namespace ptx {

EMU_INLINE void mbarrier_init(unsigned barrier, int count) { emu_mbarrier_init(barrier, count); }
EMU_INLINE void mbarrier_init_fence() { emu_mbarrier_init_fence(); }
EMU_INLINE void mbarrier_arrive(unsigned barrier) { emu_mbarrier_arrive(barrier, 0); }
EMU_INLINE void mbarrier_arrive_remote(unsigned barrier, unsigned rank) { emu_mbarrier_arrive_remote(barrier, rank); }
EMU_INLINE void mbarrier_arrive_expect(unsigned barrier, int bytes) { emu_mbarrier_arrive(barrier, bytes); }
// The copies land here at the latest, which is one of the times they may.
EMU_INLINE void mbarrier_arrive_copies(unsigned barrier) {
  emu_cp_async_commit();
  emu_cp_async_wait(0);
  emu_mbarrier_arrive(barrier, 0);
}
EMU_INLINE void mbarrier_wait(unsigned barrier, unsigned parity) { emu_mbarrier_wait(barrier, parity); }

template <int Id, int Threads>
EMU_INLINE void named_barrier_sync() {
  static_assert(Id >= 1 && Id <= 15 && Threads % 32 == 0, "named barriers are 1 to 15, of whole warps");
  emu_named_barrier(Id, Threads, 1);
}
template <int Id, int Threads>
EMU_INLINE void named_barrier_arrive() {
  static_assert(Id >= 1 && Id <= 15 && Threads % 32 == 0, "named barriers are 1 to 15, of whole warps");
  emu_named_barrier(Id, Threads, 0);
}

EMU_INLINE void tma_prefetch(const TensorMap& map) { emu_tma_prefetch(&map); }
template <int Rank>
EMU_INLINE void tma_load(unsigned destination, const TensorMap& map, unsigned barrier, const int (&at)[Rank]) {
  emu::tma_load(destination, map, barrier, 0, at);
}
template <int Rank>
EMU_INLINE void tma_load_multicast(unsigned destination, const TensorMap& map, unsigned barrier, unsigned short mask,
                                   const int (&at)[Rank]) {
  emu::tma_load(destination, map, barrier, mask, at);
}
template <int Rank>
EMU_INLINE void tma_store(const TensorMap& map, unsigned source, const int (&at)[Rank]) {
  emu_tma_store(&map, source, Rank, emu::coordinate(at, 0), emu::coordinate(at, 1), emu::coordinate(at, 2),
                emu::coordinate(at, 3), emu::coordinate(at, 4));
}
EMU_INLINE void tma_store_commit() { emu_tma_store_commit(); }
template <int Pending>
EMU_INLINE void tma_store_wait() {
  emu_tma_store_wait(Pending);
}
EMU_INLINE void bulk_load(unsigned destination, const void* source, int bytes, unsigned barrier) {
  emu_bulk_load(destination, source, bytes, barrier);
}
EMU_INLINE void bulk_load_evict_last(unsigned destination, const void* source, int bytes, unsigned barrier) {
  emu_bulk_load(destination, source, bytes, barrier);
}
EMU_INLINE void fence_proxy_async() { emu_fence_proxy_async(); }
EMU_INLINE void fence_proxy_async_global() { emu_fence_proxy_async_global(); }

// The kernel before has ended; of a launch with pdl nothing may use memory until here.
EMU_INLINE void griddepcontrol_wait() { emu_grid_wait(); }
EMU_INLINE void griddepcontrol_launch_dependents() {}

EMU_INLINE unsigned cluster_rank() { return emu_cluster_rank(); }
EMU_INLINE void cluster_arrive() { emu_cluster_arrive(1); }
EMU_INLINE void cluster_arrive_relaxed() { emu_cluster_arrive(0); }
EMU_INLINE void cluster_wait() { emu_cluster_wait(); }
EMU_INLINE void cluster_sync() {
  emu_cluster_arrive(1);
  emu_cluster_wait();
}
EMU_INLINE unsigned cluster_map(unsigned address, unsigned rank) { return emu_cluster_map(address, rank); }
template <class T>
EMU_INLINE T load_cluster(unsigned address) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "a load takes 4, 8 or 16 bytes");
  EmuWords words = emu_cluster_load(address, sizeof(T));
  if constexpr (sizeof(T) == 16) {
    return emu::bit_cast<T>(words);
  } else {
    return emu::from_bits<T>(words.low);
  }
}
template <class T>
EMU_INLINE void store_cluster(unsigned address, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "a store takes 4, 8 or 16 bytes");
  if constexpr (sizeof(T) == 16) {
    EmuWords words = emu::bit_cast<EmuWords>(value);
    emu_cluster_store(address, sizeof(T), words.low, words.high);
  } else {
    emu_cluster_store(address, sizeof(T), emu::to_bits(value), 0);
  }
}
template <class T>
EMU_INLINE void store_cluster_async(unsigned address, T value, unsigned barrier) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "a store takes 4, 8 or 16 bytes");
  if constexpr (sizeof(T) == 16) {
    EmuWords words = emu::bit_cast<EmuWords>(value);
    emu_cluster_store_async(address, sizeof(T), words.low, words.high, barrier);
  } else {
    emu_cluster_store_async(address, sizeof(T), emu::to_bits(value), 0, barrier);
  }
}

EMU_INLINE unsigned load_relaxed(const unsigned* p) { return emu_load_relaxed(p); }
EMU_INLINE int load_acquire(const int* p) { return emu_load_acquire(p); }
EMU_INLINE void store_release(int* p, int v) { emu_store_release(p, v); }
EMU_INLINE int atomic_add_release(int* p, int v) { return emu_atomic_add_release(p, v); }
EMU_INLINE void wait_for(const int* p, int value) { emu_wait_for(p, value); }

template <int N>
EMU_INLINE void red_add_f32(float* p, const float (&v)[N]) {
  static_assert(N == 2 || N == 4, "red adds 2 or 4 floats");
  for (int i = 0; i < N; ++i) emu::atomic<float>(EMU_ATOMIC_ADD, EMU_F32, p + i, v[i]);
}
template <int N>
EMU_INLINE void red_add_f16x2(void* p, const unsigned (&v)[N]) {
  static_assert(N == 1 || N == 2 || N == 4, "red adds 1, 2 or 4 pairs");
  for (int i = 0; i < N; ++i) emu::atomic<unsigned>(EMU_ATOMIC_ADD, EMU_F16X2, static_cast<unsigned*>(p) + i, v[i]);
}
template <int N>
EMU_INLINE void red_add_bf16x2(void* p, const unsigned (&v)[N]) {
  static_assert(N == 1 || N == 2 || N == 4, "red adds 1, 2 or 4 pairs");
  for (int i = 0; i < N; ++i) emu::atomic<unsigned>(EMU_ATOMIC_ADD, EMU_BF16X2, static_cast<unsigned*>(p) + i, v[i]);
}

EMU_INLINE void wgmma_fence() { emu_wgmma_fence(); }
EMU_INLINE void wgmma_commit() { emu_wgmma_commit(); }
template <int Pending>
EMU_INLINE void wgmma_wait() {
  emu_wgmma_wait(Pending);
}
template <class T, int N>
EMU_INLINE void warpgroup_fence_operand(T (&)[N]) {}
template <int N>
EMU_INLINE void setmaxnreg_dec() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg takes a multiple of 8, 24 to 256");
}
template <int N>
EMU_INLINE void setmaxnreg_inc() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg takes a multiple of 8, 24 to 256");
}

// Of N columns and operands of 16 bits, which may run along M or N; A by its descriptor, or in registers.
#define EMU_WGMMA_16(N, name, kind, Element, flags)                                                                  \
  template <bool TransposeA, bool TransposeB, int Count>                                                             \
  EMU_INLINE void wgmma_m64n##N##k16_##name(Element(&d)[Count], unsigned long long a, unsigned long long b,          \
                                            bool accumulate) {                                                       \
    emu::wgmma<kind, N, flags | TransposeA * EMU_WGMMA_TURN_A | TransposeB * EMU_WGMMA_TURN_B>(d, a, b, accumulate); \
  }                                                                                                                  \
  template <bool TransposeB, int Count>                                                                              \
  EMU_INLINE void wgmma_m64n##N##k16_##name##_rs(Element(&d)[Count], const unsigned (&a)[4], unsigned long long b,   \
                                                 bool accumulate) {                                                  \
    emu::wgmma<kind, N, flags | TransposeB * EMU_WGMMA_TURN_B>(d, a, b, accumulate);                                 \
  }
// The same along K only. Templates too: what a plain function calls is instantiated in every kernel, used or not.
#define EMU_WGMMA_K(N, depth, name, kind)                                                                         \
  template <int Count>                                                                                            \
  EMU_INLINE void wgmma_m64n##N##k##depth##_##name(float (&d)[Count], unsigned long long a, unsigned long long b, \
                                                   bool accumulate) {                                             \
    emu::wgmma<kind, N, 0>(d, a, b, accumulate);                                                                  \
  }                                                                                                               \
  template <int Count>                                                                                            \
  EMU_INLINE void wgmma_m64n##N##k##depth##_##name##_rs(float (&d)[Count], const unsigned (&a)[4],                \
                                                        unsigned long long b, bool accumulate) {                  \
    emu::wgmma<kind, N, 0>(d, a, b, accumulate);                                                                  \
  }
#define EMU_WGMMA(N)                                                \
  EMU_WGMMA_16(N, f16_f32, EMU_WGMMA_F16, float, 0)                 \
  EMU_WGMMA_16(N, f16_f16, EMU_WGMMA_F16, unsigned, EMU_WGMMA_HALF) \
  EMU_WGMMA_16(N, bf16_f32, EMU_WGMMA_BF16, float, 0)               \
  EMU_WGMMA_K(N, 8, tf32_f32, EMU_WGMMA_TF32)                       \
  EMU_WGMMA_K(N, 32, e4m3_f32, EMU_WGMMA_E4M3)                      \
  EMU_WGMMA_K(N, 32, e5m2_f32, EMU_WGMMA_E5M2)
#define EMU_WGMMA_4(a, b, c, d) EMU_WGMMA(a) EMU_WGMMA(b) EMU_WGMMA(c) EMU_WGMMA(d)
EMU_WGMMA_4(8, 16, 24, 32)
EMU_WGMMA_4(40, 48, 56, 64)
EMU_WGMMA_4(72, 80, 88, 96)
EMU_WGMMA_4(104, 112, 120, 128)
EMU_WGMMA_4(136, 144, 152, 160)
EMU_WGMMA_4(168, 176, 184, 192)
EMU_WGMMA_4(200, 208, 216, 224)
EMU_WGMMA_4(232, 240, 248, 256)
#undef EMU_WGMMA_16
#undef EMU_WGMMA_K
#undef EMU_WGMMA
#undef EMU_WGMMA_4

}  // namespace ptx
