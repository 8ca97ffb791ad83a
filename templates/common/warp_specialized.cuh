// What a warp-specialized kernel is launched as, and its roles: the cluster of blocks that is a worker, how registers
// are shared out between producer and consumer warpgroups, the order of these, and when the launch may begin.

//: Cooperative
// All consumer warpgroups multiply each tile, rows of it each.
struct Cooperative {
  static constexpr int BYTES = 0;
  explicit __device__ __forceinline__ Cooperative(unsigned, int) {}
  static __device__ __forceinline__ void init(unsigned) {}
  __device__ __forceinline__ bool takes_next() { return true; }
  __device__ __forceinline__ void wait() {}
  __device__ __forceinline__ void arrive(int) const {}
};

//: PingPong
// Two consumer warpgroups alternate between tiles, so that one's epilogue overlaps the other's products: CUTLASS's
// OrderedSequenceBarrier. A barrier each at shared address `barriers`, on which the other one arrives when its products
// are under way to the last.
struct PingPong {
  static constexpr int BYTES = 16;
  unsigned barriers;
  int consumer, tiles = 0;
  unsigned phase;  // parity alone tells phases apart: that of a tile is waited for once those before it are over

  __device__ __forceinline__ PingPong(unsigned barriers, int consumer)
      : barriers(barriers), consumer(consumer), phase(consumer ^ 1) {}

  static __device__ __forceinline__ void init(unsigned barriers) {
    for (int consumer = 0; consumer < 2; ++consumer) ptx::mbarrier_init(barriers + consumer * 8, 1);
  }

  __device__ __forceinline__ bool takes_next() { return tiles++ % 2 == consumer; }

  __device__ __forceinline__ void wait() {
    ptx::mbarrier_wait(barriers + consumer * 8, phase);
    phase ^= 1;
  }

  __device__ __forceinline__ void arrive(int thread) const {
    if (thread == 0) ptx::mbarrier_arrive(barriers + (consumer ^ 1) * 8);
  }
};

//: warpgroup_sync
// Barrier of the 128 threads of consumer warpgroup `consumer`, one of Consumers: named barriers 1, 2, ...
template <int Consumers, int First = 1>
__device__ __forceinline__ void warpgroup_sync(int consumer) {
  if constexpr (First == Consumers) {
    ptx::named_barrier_sync<First, 128>();
  } else if (consumer == First - 1) {
    ptx::named_barrier_sync<First, 128>();
  } else {
    warpgroup_sync<Consumers, First + 1>(consumer);
  }
}

//: SingleBlock
// A worker of one block.
struct SingleBlock {
  static constexpr int M = 1, N = 1, SIZE = 1;
  static __device__ __forceinline__ int rank() { return 0; }
  static __device__ __forceinline__ void arrive() {}
  static __device__ __forceinline__ void wait() { __syncthreads(); }
  static __device__ __forceinline__ void leave() {}
};

//: Sharers
// The blocks of a cluster that have the same tile of an operand, a bit each, and which of them this one is.
struct Sharers {
  int place;
  unsigned short blocks;
};

//: ClusterBarrier
// What blocks of a cluster wait at for each other.
struct ClusterBarrier {
  static __device__ __forceinline__ int rank() { return ptx::cluster_rank(); }
  // All blocks have come, and their mbarriers are there: between the two a thread does what needs neither.
  static __device__ __forceinline__ void arrive() { ptx::cluster_arrive_relaxed(); }
  static __device__ __forceinline__ void wait() { ptx::cluster_wait(); }
  // What each has written to shared memory is seen by all.
  static __device__ __forceinline__ void sync() { ptx::cluster_sync(); }
};

//: BlockCluster
// A worker of Rows x Columns blocks in a cluster, rank by rank down the columns.
template <int Rows, int Columns>
struct BlockCluster : ClusterBarrier {
  static constexpr int M = Rows, N = Columns, SIZE = Rows * Columns;
  static __device__ __forceinline__ void leave() {}  // see MulticastPipeline::drain
  static __device__ __forceinline__ Sharers of_a(int rank) {
    constexpr int EVERY = ((1 << SIZE) - 1) / ((1 << Rows) - 1);  // the first of each column
    return {rank / Rows, static_cast<unsigned short>(EVERY << rank % Rows)};
  }
  static __device__ __forceinline__ Sharers of_b(int rank) {
    return {rank % Rows, static_cast<unsigned short>(((1 << Rows) - 1) << rank / Rows * Rows)};
  }
};

//: SplitCluster
// A worker of a cluster of Splits blocks that share a tile's sum over K.
template <int Splits>
struct SplitCluster : ClusterBarrier {
  static constexpr int M = 1, N = 1, SIZE = Splits;
  // No block may leave while another reads its sums.
  static __device__ __forceinline__ void leave() {
    arrive();
    wait();
  }
};

//: EvenRegisters
// Every warpgroup keeps the registers that the launch gave it.
struct EvenRegisters {
  static __device__ __forceinline__ void producer() {}
  static __device__ __forceinline__ void consumer() {}
};

//: SharedRegisters
// The producer leaves registers to the consumers: so many a thread are left to each.
template <int Producer, int Consumer>
struct SharedRegisters {
  static __device__ __forceinline__ void producer() { ptx::setmaxnreg_dec<Producer>(); }
  static __device__ __forceinline__ void consumer() { ptx::setmaxnreg_inc<Consumer>(); }
};

//: StreamOrder
// The launch begins when the one before it in the stream has ended.
struct StreamOrder {
  static __device__ __forceinline__ void wait() {}
  static __device__ __forceinline__ void launch_dependents() {}
};

//: ProgrammaticDependentLaunch
// The launch begins while the one before it still runs; what that has written may be read after `wait`.
struct ProgrammaticDependentLaunch {
  static __device__ __forceinline__ void wait() { ptx::griddepcontrol_wait(); }
  static __device__ __forceinline__ void launch_dependents() { ptx::griddepcontrol_launch_dependents(); }
};
