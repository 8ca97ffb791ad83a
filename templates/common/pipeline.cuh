// Rings of tiles in shared memory between the warpgroup that copies (the producer) and those that multiply (the
// consumers), with a full and an empty mbarrier a stage, as in CUTLASS's PipelineTmaAsync.

//: PipelineState
// The next stage of a ring, and the parity of the phase that its barriers are in.
template <int Stages>
struct PipelineState {
  int stage = 0;
  unsigned phase = 0;

  __device__ __forceinline__ void advance() {
    stage = stage + 1 == Stages ? 0 : stage + 1;
    phase ^= stage == 0;
  }

  __device__ __forceinline__ void advance(int steps) {
    stage += steps;
    phase ^= stage / Stages % 2;
    stage %= Stages;
  }
};

//: TmaPipeline
// The barriers of a ring of Stages, 8 bytes each: the full ones at shared address `full`, the empty ones at `empty`.
template <int Stages>
struct TmaPipeline {
  static constexpr int BYTES = Stages * 16;
  unsigned full, empty;

  explicit __device__ __forceinline__ TmaPipeline(unsigned barriers) : full(barriers), empty(barriers + Stages * 8) {}

  // By one thread. A stage is full after so many arrivals and the bytes told by `expect`, and empty after so many
  // releases.
  __device__ __forceinline__ void init(int producers, int consumers) const {
    for (int stage = 0; stage < Stages; ++stage) {
      ptx::mbarrier_init(full + stage * 8, producers);
      ptx::mbarrier_init(empty + stage * 8, consumers);
    }
  }

  // The producer waits until the stage has been read.
  __device__ __forceinline__ void acquire(const PipelineState<Stages>& state) const {
    ptx::mbarrier_wait(empty + state.stage * 8, state.phase ^ 1);
  }

  // One arrival of the producer, which tells how many bytes its copies will bring to the stage; the barrier they arrive
  // on.
  __device__ __forceinline__ unsigned expect(const PipelineState<Stages>& state, int bytes) const {
    ptx::mbarrier_arrive_expect(full + state.stage * 8, bytes);
    return full + state.stage * 8;
  }

  // A consumer waits until the stage is full.
  __device__ __forceinline__ void wait(const PipelineState<Stages>& state) const {
    ptx::mbarrier_wait(full + state.stage * 8, state.phase);
  }

  // One release of the stage by the threads of a warp or a warpgroup, of which this one is number `thread`.
  __device__ __forceinline__ void release(int stage, int thread) const {
    if (thread == 0) ptx::mbarrier_arrive(empty + stage * 8);
  }
};

//: MulticastPipeline
// A TmaPipeline whose tiles are shared by the Blocks of a cluster: each release is told to all of them.
template <int Stages, int Blocks>
struct MulticastPipeline : TmaPipeline<Stages> {
  using TmaPipeline<Stages>::TmaPipeline;

  __device__ __forceinline__ void release(int stage, int thread) const {
    if (thread < Blocks) ptx::mbarrier_arrive_remote(this->empty + stage * 8, thread);
  }
};

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
  static __device__ __forceinline__ void sync() { __syncthreads(); }
  static __device__ __forceinline__ void leave() {}
};

//: BlockCluster
// A worker of Rows x Columns blocks in a cluster, rank by rank down the columns.
template <int Rows, int Columns>
struct BlockCluster {
  static constexpr int M = Rows, N = Columns, SIZE = Rows * Columns;
  static __device__ __forceinline__ int rank() { return ptx::cluster_rank(); }
  static __device__ __forceinline__ void sync() { ptx::cluster_sync(); }
  // No block may leave while another still sends tiles or arrivals to it.
  static __device__ __forceinline__ void leave() { ptx::cluster_sync(); }
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
