// How a consumer warpgroup goes over the blocks of columns of a gradient of attention. Of a block, `inner` and `outer`
// issue the products, Outers groups of wgmma the latter; `weigh(step)` makes weights of inner products, `take` makes
// them the A of the outer ones, and `release` gives the block's columns back.

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
