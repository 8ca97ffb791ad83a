// How a consumer warpgroup goes over the blocks of columns of a gradient of attention. Of a block, `inner` and `outer`
// issue the products, Outers groups of wgmma the latter; `weigh(step)` makes weights of inner products, `take` makes
// them the A of the outer ones, and `release` gives the block's columns back.

//: seeing_columns
// Of `count` columns, of which c sees the rows from of(c).x to before of(c).y: from the first to before the last that
// sees a row from `begin` to before `end`. All threads of a block take part, and lend it two ints of shared memory.
template <typename Of>
__device__ __forceinline__ int2 seeing_columns(int begin, int end, int count, int* scratch, const Of& of) {
  int first = count, last = 0;
#pragma unroll 4
  for (int c = threadIdx.x; c < count; c += blockDim.x) {
    const int2 rows = of(c);
    if (max(rows.x, begin) < min(rows.y, end)) {
      first = min(first, c);
      last = c + 1;
    }
  }
  if (threadIdx.x == 0) {
    scratch[0] = count;
    scratch[1] = 0;
  }
  __syncthreads();
  first = __reduce_min_sync(0xffffffff, first);
  last = __reduce_max_sync(0xffffffff, last);
  if (threadIdx.x % 32 == 0) {
    atomicMin(scratch, first);
    atomicMax(scratch + 1, last);
  }
  __syncthreads();
  const int2 seeing = make_int2(scratch[0], scratch[1]);
  __syncthreads();
  return seeing;
}

//: SerialGradient
// One block after the other.
template <int Outers>
struct SerialGradient {
  template <typename Inner, typename Weigh, typename Take, typename Outer, typename Release>
  static __device__ __forceinline__ void run(int steps, const Inner& inner, const Weigh& weigh, const Take& take,
                                             const Outer& outer, const Release& release) {
    for (int step = 0; step < steps; ++step) {
      inner();
      ptx::wgmma_wait<0>();
      weigh(step);
      take();
      outer();
      ptx::wgmma_wait<0>();
      release();
    }
  }
};

//: OverlappedGradient
// The outer products of a block are added up while the weights of the next one are made.
template <int Outers>
struct OverlappedGradient {
  template <typename Inner, typename Weigh, typename Take, typename Outer, typename Release>
  static __device__ __forceinline__ void run(int steps, const Inner& inner, const Weigh& weigh, const Take& take,
                                             const Outer& outer, const Release& release) {
    inner();
    ptx::wgmma_wait<0>();
    weigh(0);
    take();
    for (int step = 1; step < steps; ++step) {
      inner();
      outer();
      ptx::wgmma_wait<Outers>();
      weigh(step);
      ptx::wgmma_wait<0>();
      release();
      take();
    }
    outer();
    ptx::wgmma_wait<0>();
    release();
  }
};

//: stage_written
// One arrival at a stage of a warp, which has written its part of it by itself.
template <int Stages>
__device__ __forceinline__ void stage_written(const TmaPipeline<Stages>& pipeline, const PipelineState<Stages>& state,
                                              int lane) {
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(pipeline.full + state.stage * 8);
}

//: OnePassGradient
// Inner and outer products, and those that go across, of the weights of all warpgroups: these are added up while the
// outer ones of the next block are, so that warpgroups may be most of a block apart. Weights of the block before the
// first are there, and count for nothing: code that is there once takes fewer registers. `locate(step)` is the step's
// block and the place of its sums. `weigh` also makes weights the A of the outer products; `give(step)` shows them to
// the other warpgroups, `cross(added, step)` issues the products across, `take_back` gives the place of their weights
// back, and `add(added, place)` adds them to the sums.
template <int Scores, int Outers, int Count, int Added>
struct OnePassGradient {
  template <typename Locate, typename Inner, typename Weigh, typename Give, typename Cross, typename Outer,
            typename TakeBack, typename Add, typename Release>
  static __device__ __forceinline__ void run(int steps, const Locate& locate, const Inner& inner, const Weigh& weigh,
                                             const Give& give, const Cross& cross, const Outer& outer,
                                             const TakeBack& take_back, const Add& add, const Release& release) {
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      const int2 at = locate(step);
      float scores[Scores][Count];
      inner(scores, step);
      ptx::wgmma_wait<0>();
      weigh(scores, step, at.x);
      give(step);
      float added[1][Added];
      cross(added, step - 1);
      outer(step);
      ptx::wgmma_wait<Outers>();
      take_back(added, step - 1);
      if (step > 0) add(added, before);
      ptx::wgmma_wait<0>();
      release(step);
      before = at.y;
    }
    float added[1][Added];
    cross(added, steps - 1);
    ptx::wgmma_wait<0>();
    take_back(added, steps - 1);
    add(added, before);
  }
};

//: BlockSums
// f32 sums in global memory that many thread blocks add to, by blocks of Rows rows of Depth columns, 0 before the
// launch and after it. Of a block a consumer warpgroup has WIDTH columns of 64 rows, which lie as its accumulators do:
// four of a thread after those of the thread before.
template <int Rows, int Depth, int Consumers>
struct BlockSums {
  static_assert(Rows == 64 || Rows == Consumers * 64, "a consumer has 64 rows");
  static constexpr int THREADS = Consumers * 128, WIDTH = Rows == 64 ? Depth / Consumers : Depth;
  static constexpr int COUNT = WIDTH / 2;  // accumulators of a thread
  float* sums;

  static __device__ __forceinline__ int first_row(int consumer) { return Rows == 64 ? 0 : consumer * 64; }
  static __device__ __forceinline__ int first_column(int consumer) { return Rows == 64 ? consumer * WIDTH : 0; }

  // Adds a thread's share of a consumer's products to the block at `place`.
  __device__ __forceinline__ void add(int place, const float (&values)[COUNT], int consumer, int thread) const {
    float* const to = at(place) + consumer * (64 * WIDTH) + thread * 4;
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
      const float four[4] = {values[j * 4], values[j * 4 + 1], values[j * 4 + 2], values[j * 4 + 3]};
      ptx::red_add_f32(to + j * 512, four);
    }
  }

  // By all consumers, when each has added all that it adds: whether this thread block is the last of `blocks` that
  // share `arrivals`, 0 before the launch and after it. That one sees the sums of all. `flag` is shared memory.
  static __device__ __forceinline__ bool is_last(int* arrivals, int blocks, int* flag, int thread) {
    __threadfence();
    ptx::named_barrier_sync<Consumers + 1, THREADS>();
    if (thread == 0) *flag = atomicAdd(arrivals, 1) == blocks - 1;
    ptx::named_barrier_sync<Consumers + 1, THREADS>();
    if (!*flag) return false;
    if (thread == 0) *arrivals = 0;
    __threadfence();
    return true;
  }

  // By all consumers: `store(pair, row, column)` gets all of `blocks` blocks from `place` on, two neighbouring columns
  // at a time, and the sums become 0.
  template <typename Store>
  __device__ __forceinline__ void finish(int place, int blocks, int thread, const Store& store) const {
    constexpr int AHEAD = 8;  // loads of a thread under way, of a block
    constexpr int PARTS = Rows * Depth / (THREADS * 4 * AHEAD);
    const int consumer = thread / 128, own = thread % 128;
    const int row0 = first_row(consumer) + own / 32 * 16 + own % 32 / 4, column0 = first_column(consumer) + own % 4 * 2;
    float4* from = reinterpret_cast<float4*>(at(place)) + consumer * (64 * WIDTH / 4) + own;
#pragma unroll 1
    for (int i = 0; i < blocks * PARTS; ++i) {
      float4 four[AHEAD];
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) four[j] = __ldcg(from + j * 128);
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        const int row = i / PARTS * Rows + row0, column = i % PARTS * (AHEAD * 8) + column0 + j * 8;
        __stcg(from + j * 128, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
        const float above[2] = {four[j].x, four[j].y}, below[2] = {four[j].z, four[j].w};
        store(above, row, column);
        store(below, row + 8, column);
      }
      from += i % PARTS == PARTS - 1 ? Rows * Depth / 4 - (PARTS - 1) * (AHEAD * 128) : AHEAD * 128;
    }
  }

 private:
  __device__ __forceinline__ float* at(int place) const {
    return sums + static_cast<long long>(place) * (Rows * Depth);
  }
};
