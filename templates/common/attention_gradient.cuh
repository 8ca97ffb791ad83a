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
