// Barriers in shared memory that count arrivals and the bytes of asynchronous copies (sm_90 and above), 8 bytes each.
// A phase ends when all arrivals and all expected bytes are in; phases have parity 0, 1, 0, ... Source: PTX ISA,
// "mbarrier".

//: mbarrier_init
// Makes the 8 bytes at `barrier` a barrier of `count` arrivals a phase.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

//: mbarrier_init_fence
// Shows this thread's mbarrier_init to the cluster and to asynchronous copies; a barrier or cluster barrier must
// follow.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

//: mbarrier_arrive
// Counts one arrival.
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

//: mbarrier_arrive_remote
// Counts one arrival on the barrier at the same place in block `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_remote(unsigned barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

//: mbarrier_arrive_expect
// Counts one arrival and `bytes` that copies will bring in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

//: mbarrier_arrive_copies
// Counts one arrival when all cp.async of this thread so far have landed, and does not wait for that.
__device__ __forceinline__ void mbarrier_arrive_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

//: mbarrier_wait
// Waits until the phase of `parity` has ended. On a new barrier parity 1 counts as ended.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  unsigned ended;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!ended);
}
