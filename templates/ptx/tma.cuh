// The tensor memory accelerator (sm_90 and above): one thread copies a box of a tensor between global and shared
// memory. Coordinates are in elements, the contiguous axis first; what a box reaches beyond the tensor is read as zero
// and not written. A box begins at a multiple of 16 bytes along the contiguous axis, a store's within the tensor. Boxes
// in shared memory are dense and aligned to 128 bytes, or to the 8 rows over which a swizzle repeats. Source: PTX ISA,
// "cp.async.bulk.tensor"; where a box may begin was seen on an H200.

//: TensorMap
// How the accelerator sees a tensor: address, sizes, strides, box, swizzle, as cuTensorMapEncodeTiled writes them. A
// kernel parameter, `const __grid_constant__`.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

//: tma_prefetch
// Fetches the map itself ahead of its first use.
__device__ __forceinline__ void tma_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

//: tma_load
// Copies the box at `at` to shared memory; its bytes arrive on `barrier`.
__device__ __forceinline__ void tma_load(unsigned destination, const TensorMap& map, unsigned barrier,
                                         const int (&at)[1]) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(
          destination),
      "l"(&map), "r"(barrier), "r"(at[0])
      : "memory");
}
__device__ __forceinline__ void tma_load(unsigned destination, const TensorMap& map, unsigned barrier,
                                         const int (&at)[2]) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(destination),
      "l"(&map), "r"(barrier), "r"(at[0]), "r"(at[1])
      : "memory");
}
__device__ __forceinline__ void tma_load(unsigned destination, const TensorMap& map, unsigned barrier,
                                         const int (&at)[3]) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2])
      : "memory");
}
__device__ __forceinline__ void tma_load(unsigned destination, const TensorMap& map, unsigned barrier,
                                         const int (&at)[4]) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}
__device__ __forceinline__ void tma_load(unsigned destination, const TensorMap& map, unsigned barrier,
                                         const int (&at)[5]) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
      : "memory");
}

//: tma_load_multicast
// As tma_load, to the same place in every block of the cluster whose bit is set in `mask`; the bytes arrive on the
// barrier at the same place in each of them.
__device__ __forceinline__ void tma_load_multicast(unsigned destination, const TensorMap& map, unsigned barrier,
                                                   unsigned short mask, const int (&at)[2]) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%4, %5}], [%2], %3;" ::"r"(destination),
      "l"(&map), "r"(barrier), "h"(mask), "r"(at[0]), "r"(at[1])
      : "memory");
}
__device__ __forceinline__ void tma_load_multicast(unsigned destination, const TensorMap& map, unsigned barrier,
                                                   unsigned short mask, const int (&at)[3]) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%4, %5, %6}], [%2], %3;" ::"r"(destination),
      "l"(&map), "r"(barrier), "h"(mask), "r"(at[0]), "r"(at[1]), "r"(at[2])
      : "memory");
}
__device__ __forceinline__ void tma_load_multicast(unsigned destination, const TensorMap& map, unsigned barrier,
                                                   unsigned short mask, const int (&at)[4]) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%4, %5, %6, %7}], [%2], %3;" ::"r"(destination),
      "l"(&map), "r"(barrier), "h"(mask), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}
__device__ __forceinline__ void tma_load_multicast(unsigned destination, const TensorMap& map, unsigned barrier,
                                                   unsigned short mask, const int (&at)[5]) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(destination),
      "l"(&map), "r"(barrier), "h"(mask), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
      : "memory");
}

//: tma_store
// Copies a box from shared memory to `at`; part of this thread's open group of stores.
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned source, const int (&at)[1]) {
  asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];" ::"l"(&map), "r"(source),
               "r"(at[0])
               : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned source, const int (&at)[2]) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
               "r"(source), "r"(at[0]), "r"(at[1])
               : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned source, const int (&at)[3]) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2])
               : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned source, const int (&at)[4]) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
               : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned source, const int (&at)[5]) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
      : "memory");
}

//: tma_store_commit
// Closes the group of the stores this thread has issued since the last commit.
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

//: tma_store_wait
// Waits until at most `Pending` of this thread's groups still read their sources in shared memory.
template <int Pending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

//: bulk_add_f32
// Adds `bytes` of floats, a multiple of 16, from shared to global memory, both aligned to 16; part of this thread's open
// group of stores. Subnormal sums become zero.
__device__ __forceinline__ void bulk_add_f32(float* destination, unsigned source, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
}

//: tma_store_complete
// Waits until all of this thread's groups have written their results, which others then see as this thread's own.
__device__ __forceinline__ void tma_store_complete() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

//: fence_proxy_async
// Shows this thread's writes to shared memory to the accelerator and to wgmma.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

//: fence_proxy_async_global
// Shows this thread's writes to global memory, and those it has synchronised with, to the accelerator.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

//: bulk_load
// Copies `bytes`, a multiple of 16, from global to shared memory, both aligned to 16; they arrive on `barrier`.
__device__ __forceinline__ void bulk_load(unsigned destination, const void* source, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

//: bulk_load_evict_last
// As bulk_load, of lines that L2 evicts after others.
__device__ __forceinline__ void bulk_load_evict_last(unsigned destination, const void* source, int bytes,
                                                     unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy_evict_last())
      : "memory");
}
