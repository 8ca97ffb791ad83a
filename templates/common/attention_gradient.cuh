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
// back, and `add(added, step, place)` adds them to the sums.
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
      if (step > 0) add(added, step - 1, before);
      ptx::wgmma_wait<0>();
      release(step);
      before = at.y;
    }
    float added[1][Added];
    cross(added, steps - 1);
    ptx::wgmma_wait<0>();
    take_back(added, steps - 1);
    add(added, steps - 1, before);
  }
};

//: BlockSums
// f32 sums in global memory that many thread blocks add to, by blocks of Rows rows of Depth columns, 0 before the
// launch and after it, and how many have added to each. Of a block a consumer warpgroup has WIDTH columns of 64 rows,
// which lie as its accumulators do: four of a thread after those of the thread before.
template <int Rows, int Depth, int Consumers>
struct BlockSums {
  static_assert(Rows == 64 || Rows == Consumers * 64, "a consumer has 64 rows");
  static constexpr int WIDTH = Rows == 64 ? Depth / Consumers : Depth;
  static constexpr int COUNT = WIDTH / 2;  // accumulators of a thread
  float* sums;
  int* arrivals;

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

  // By a warp that knows of all that this thread block adds to a block: the lanes whose block all `blocks` have added
  // to, and which is to be finished. Lanes without one are not `counted`.
  __device__ __forceinline__ unsigned arrive(int place, int blocks, bool counted) const {
    __threadfence();
    const bool last = counted && atomicAdd(arrivals + place, 1) == blocks - 1;
    if (last) arrivals[place] = 0;
    __threadfence();
    __syncwarp();
    return __ballot_sync(0xffffffff, last);
  }

  // By a warp: `store(values, row, column)` gets all of a block, eight neighbouring columns at a time, and the sums
  // become 0.
  template <typename Store>
  __device__ __forceinline__ void finish(int place, int lane, const Store& store) const {
    constexpr int GROUPS = WIDTH / 8;
    float2* const sums = reinterpret_cast<float2*>(at(place));
#pragma unroll 1
    for (int i = lane; i < Rows * Depth / 8; i += 32) {
      // Of a consumer four lanes have eight columns of a row, beside those of the row eight below.
      const int half = i % 2, group = i / 2 % GROUPS, quad = i / 2 / GROUPS % 32, consumer = i / 2 / GROUPS / 32;
      float2* const from = sums + ((consumer * GROUPS + group) * 128 + quad * 4) * 2 + half;
      float values[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 two = __ldcg(from + j * 2);
        values[j * 2] = two.x, values[j * 2 + 1] = two.y;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) __stcg(from + j * 2, make_float2(0.0f, 0.0f));
      store(values, first_row(consumer) + quad / 8 * 16 + half * 8 + quad % 8, first_column(consumer) + group * 8);
    }
  }

 private:
  __device__ __forceinline__ float* at(int place) const {
    return sums + static_cast<long long>(place) * (Rows * Depth);
  }
};
