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

  // The producer may leave.
  __device__ __forceinline__ void drain(PipelineState<Stages>) const {}
};

//: MulticastPipeline
// A TmaPipeline whose tiles are shared by the Blocks of a cluster: each release is told to all of them.
template <int Stages, int Blocks>
struct MulticastPipeline : TmaPipeline<Stages> {
  using TmaPipeline<Stages>::TmaPipeline;

  __device__ __forceinline__ void release(int stage, int thread) const {
    if (thread < Blocks) ptx::mbarrier_arrive_remote(this->empty + stage * 8, thread);
  }

  // The producer waits until every block has released all stages. After that no block sends this one tiles or arrivals,
  // so it may end: CUTLASS's producer_tail.
  __device__ __forceinline__ void drain(PipelineState<Stages> state) const {
#pragma unroll 1
    for (int stage = 0; stage < Stages; ++stage) {
      this->acquire(state);
      state.advance();
    }
  }
};
