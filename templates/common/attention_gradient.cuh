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
  first = ptx::reduce_min(first);
  last = ptx::reduce_max(last);
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

//: after_steps
// The place in a ring after so many steps.
template <int Stages>
__device__ __forceinline__ PipelineState<Stages> after_steps(int steps) {
  return {steps % Stages, static_cast<unsigned>(steps) / Stages % 2};
}

//: OnePassGradient
// Inner and outer products, and those that go across, of the weights of all warpgroups: these are added up while the
// outer ones of the next block are, so that warpgroups may be most of a block apart. Weights of the block before the
// first are there, and count for nothing: code that is there once takes fewer registers. The first inner product of a
// block follows the products of the one before, and is under way while these are waited for: behind the last block it
// is made once more, and not used. `inner(scores, step, i)` issues inner product i. `weigh` also makes weights the A of
// the outer products; `give(step)` shows them to the other warpgroups, `cross(added, step)` issues the products across,
// `take_back` gives the place of their weights back, and `add` adds them to the sums. With PingPong for the Order one
// warpgroup makes weights while the other multiplies.
template <int Scores, int Count, int Added>
struct OnePassGradient {
  template <typename Order, typename Inner, typename Weigh, typename Give, typename Cross, typename Outer,
            typename TakeBack, typename Add, typename Release>
  static __device__ __forceinline__ void run(int steps, Order& order, int thread, const Inner& inner,
                                             const Weigh& weigh, const Give& give, const Cross& cross,
                                             const Outer& outer, const TakeBack& take_back, const Add& add,
                                             const Release& release) {
    float scores[Scores][Count];
    order.wait();
    inner(scores, 0, 0);
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 1; i < Scores; ++i) inner(scores, step, i);
      order.arrive(thread);
      ptx::wgmma_wait<0>();
      weigh(scores, step);
      give(step);
      order.wait();
      float added[1][Added];
      outer(step);
      cross(added, step - 1);
      ptx::wgmma_wait<1>();
      release(step);
      inner(scores, min(step + 1, steps - 1), 0);
      ptx::wgmma_wait<1>();
      take_back(added, step - 1);
      if (step > 0) add(added, step - 1);
    }
    float added[1][Added];
    cross(added, steps - 1);
    order.arrive(thread);
    ptx::wgmma_wait<0>();
    take_back(added, steps - 1);
    add(added, steps - 1);
  }
};

//: SharedRowsGradient
// As OnePassGradient, where warpgroups share the rows: outer products too, Outers groups of them, are of the weights of
// all of them, which `outer` and `cross` wait for. What a block adds to the sums leaves while the outer products are
// under way, and the inner ones of the next block follow these.
template <int Scores, int Count, int Outers, int Added>
struct SharedRowsGradient {
  template <typename Inner, typename Weigh, typename Give, typename Cross, typename Outer, typename TakeBack,
            typename Add, typename Release>
  static __device__ __forceinline__ void run(int steps, const Inner& inner, const Weigh& weigh, const Give& give,
                                             const Cross& cross, const Outer& outer, const TakeBack& take_back,
                                             const Add& add, const Release& release) {
    for (int step = 0; step < steps; ++step) {
      {
        float scores[Scores][Count];
#pragma unroll
        for (int i = 0; i < Scores; ++i) inner(scores, step, i);
        ptx::wgmma_wait<Scores>();
        if (step > 0) release(step - 1);
        ptx::wgmma_wait<0>();
        weigh(scores, step);
        give(step);
      }
      float added[1][Added];
      cross(added, step);
      outer(step);
      ptx::wgmma_wait<Outers>();
      take_back(added, step);
      add(added, step);
    }
    ptx::wgmma_wait<0>();
    release(steps - 1);
  }
};

//: BlockSums
// f32 sums in global memory that many thread blocks add to, by blocks of Rows rows of Depth columns, 0 before the
// launch and after it. Of a block a consumer warpgroup has WIDTH columns of 64 rows, a warp after the other, which lie
// as its accumulators do: four of a thread after those of the thread before.
template <int Rows, int Depth, int Consumers>
struct BlockSums {
  static_assert(Rows == 64 || Rows == Consumers * 64, "a consumer has 64 rows");
  static constexpr int THREADS = Consumers * 128, WIDTH = Rows == 64 ? Depth / Consumers : Depth;
  static constexpr int BARRIER = Consumers + 1;
  static constexpr int COUNT = WIDTH / 2;  // accumulators of a thread
  static constexpr int WARP = 32 * COUNT;  // those of a warp
  static constexpr int TOGETHER = 2;       // blocks that are finished at a time
  float* sums;

  static __device__ __forceinline__ int first_row(int consumer) { return Rows == 64 ? 0 : consumer * 64; }
  static __device__ __forceinline__ int first_column(int consumer) { return Rows == 64 ? consumer * WIDTH : 0; }

  // What warp `warp` of all consumers has of the block at `place`.
  __device__ __forceinline__ float* at(int place, int warp) const {
    return sums + static_cast<long long>(place) * (Rows * Depth) + warp * WARP;
  }

  // A warp adds its accumulators to what it has of the block at `place`, four at a time.
  __device__ __forceinline__ void add(int place, int warp, int lane, const float (&values)[COUNT]) const {
    float* const to = at(place, warp) + lane * 4;
#pragma unroll
    for (int j = 0; j < COUNT; j += 4) {
      const float four[4] = {values[j], values[j + 1], values[j + 2], values[j + 3]};
      ptx::red_add_f32(to + j * 32, four);
    }
  }

  // By all consumers: `store(pair, row, column)` gets TOGETHER of the `blocks` blocks from `place` on, the `first` and
  // the next, two neighbouring columns at a time, and the sums become 0.
  template <typename Store>
  __device__ __forceinline__ void finish(int place, int first, int blocks, int thread, const Store& store) const {
    constexpr int LOADS = COUNT / 4;  // a thread's of a block
    const int consumer = thread / 128, warp = thread / 32, lane = thread % 32;
    const int row = first_row(consumer) + warp % 4 * 16 + lane / 4, column = first_column(consumer) + lane % 4 * 2;
    float4 four[TOGETHER * LOADS];
    const auto each = [&](const auto& take) {
#pragma unroll
      for (int i = 0; i < TOGETHER * LOADS; ++i) {
        const int block = min(first + i / LOADS, blocks - 1);  // the last one again, where there is no other
        take(i, reinterpret_cast<float4*>(at(place + block, warp)) + lane + i % LOADS * 32, block * Rows + row);
      }
    };
    each([&](int i, const float4* from, int) { four[i] = __ldcg(from); });
    each([&](int i, float4* to, int above) {
      __stcg(to, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
      store({four[i].x, four[i].y}, above, column + i % LOADS * 8);
      store({four[i].z, four[i].w}, above + 8, column + i % LOADS * 8);
    });
  }
};

//: FinishTogether
// When all blocks of a head have added to its sums, these are finished in parts: by those that ended when all blocks of
// the launch had started, which wait for the others, and where there are none by the last one. `counters` are two for
// each of the launch's heads and two more, all 0 before the launch and after it. THREADS threads of a block take part,
// by named barrier Barrier.
template <int Barrier, int THREADS>
struct FinishTogether {
  enum { LEAVES, ALONE, TOGETHER };
  static constexpr int WAITER = 1 << 23;  // what one adds besides to the arrivals, which are fewer
  int *arrivals, *claims, *started, *finished;
  int heads;

  __device__ __forceinline__ FinishTogether(int* counters, int head, int heads)
      : arrivals(counters + head),
        claims(counters + heads + head),
        started(counters + 2 * heads),
        finished(started + 1),
        heads(heads) {}

  // By the first thread, when the counters are the launch's.
  __device__ __forceinline__ void start() const { atomicAdd(started, 1); }

  // By the first thread, some time before the end: whether its block is to wait for the others.
  __device__ __forceinline__ bool all_started() const {
    return ptx::load_acquire(started) == static_cast<int>(gridDim.x);
  }

  // `finish(part)` for some of `parts`, once `blocks` blocks of the head are here. `waits` is the first thread's,
  // `flag` shared memory.
  template <typename Finish>
  __device__ __forceinline__ void run(bool waits, int blocks, int parts, int* flag, int thread,
                                      const Finish& finish) const {
    const auto told = [&](const auto& ask) {
      ptx::named_barrier_sync<Barrier, THREADS>();
      if (thread == 0) *flag = ask();
      ptx::named_barrier_sync<Barrier, THREADS>();
      return *flag;
    };
    int there = 0;  // the first thread's: arrivals
    const int how = told([&] {
      there = ptx::atomic_add_release(arrivals, waits ? 1 + WAITER : 1);
      if (!waits) return there == blocks - 1 ? ALONE : LEAVES;
      while ((there = ptx::load_acquire(arrivals)) % WAITER < blocks) __nanosleep(100);
      return TOGETHER;
    });
    if (how == LEAVES) return;
    __threadfence();
    int part = 0;
    const auto next = [&] { return how == ALONE ? part + 1 : told([&] { return atomicAdd(claims, 1); }); };
    for (part = how == ALONE ? 0 : next(); part < parts; part = next()) finish(part);
    // Of those that waited each has claimed one part that is not there.
    if (thread > 0 || (how == TOGETHER && part - parts < there / WAITER - 1)) return;
    *arrivals = *claims = 0;
    if (ptx::atomic_add_release(finished, 1) == heads - 1) *started = *finished = 0;
  }
};
