// Named barriers of a block: the threads of some of its warps meet. Barrier 0 is __syncthreads.

//: named_barrier_sync
// Waits until `Threads` threads, a multiple of 32, have come to barrier `Id` (1 to 15).
template <int Id, int Threads>
__device__ __forceinline__ void named_barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}

//: named_barrier_arrive
// Counts this thread as come to barrier `Id` without waiting.
template <int Id, int Threads>
__device__ __forceinline__ void named_barrier_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}
