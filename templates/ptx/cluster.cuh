// Clusters of blocks and their distributed shared memory (sm_90 and above).

//: cluster_rank
// This block's number in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

//: cluster_arrive
// Counts this thread as come to the cluster's barrier and shows what it wrote before.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }

//: cluster_arrive_relaxed
// Counts this thread as come to the cluster's barrier without showing what it wrote: a release waits until all its
// stores, TMA's too, are seen by the whole GPU. mbarriers are shown by mbarrier_init_fence. Source: PTX ISA,
// "barrier.cluster".
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

//: cluster_wait
// Waits until all threads of the cluster have arrived.
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

//: cluster_sync
// All threads of the cluster meet.
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

//: cluster_map
// The address, for load_cluster and store_cluster, of the same place in the shared memory of block `rank`.
__device__ __forceinline__ unsigned cluster_map(unsigned address, unsigned rank) {
  unsigned mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

//: load_cluster
// Loads 4, 8 or 16 bytes from the shared memory of a block of the cluster.
template <typename T>
__device__ __forceinline__ T load_cluster(unsigned address) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "a load takes 4, 8 or 16 bytes");
  T value;
  unsigned* const words = reinterpret_cast<unsigned*>(&value);
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(words[0]) : "r"(address) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
  return value;
}

//: store_cluster
// Stores 4, 8 or 16 bytes to the shared memory of a block of the cluster.
template <typename T>
__device__ __forceinline__ void store_cluster(unsigned address, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "a store takes 4, 8 or 16 bytes");
  const unsigned* const words = reinterpret_cast<const unsigned*>(&value);
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(words[0]) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(words[0]), "r"(words[1]) : "memory");
  } else {
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

//: store_cluster_async
// Stores 4, 8 or 16 bytes to the shared memory of a block of the cluster and does not wait; the bytes arrive on
// `barrier`, in that block too. A thread that waits for that sees them. Source: PTX ISA, "st.async".
template <typename T>
__device__ __forceinline__ void store_cluster_async(unsigned address, T value, unsigned barrier) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "a store takes 4, 8 or 16 bytes");
  const unsigned* const words = reinterpret_cast<const unsigned*>(&value);
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
                 "r"(words[0]), "r"(barrier)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address),
                 "r"(words[0]), "r"(words[1]), "r"(barrier)
                 : "memory");
  } else {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
        "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(barrier)
        : "memory");
  }
}
