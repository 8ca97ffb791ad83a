// What follows the main loop of a consumer warpgroup: sums of parts of K are added up, and results leave for memory.
// `results[i]` are those of 64 rows as wgmma leaves them; Rows says which rows these are. The epilogue is given them as
// Value.

//: TmaStore
// Results leave by TMA, 64 rows by Width columns at a time, through a ring of Stages in shared memory, so that stores
// overlap the next tile's products. `evaluate(pair, m, n)` is the epilogue of two neighbours along n, 16 bits each.
// Batch: the tile's coordinates on the further axes of the tensor map.
template <typename Value, int Columns, int Width, int Stages, bool Transposed, int Consumers, typename Rows,
          int... Batch>
struct TmaStore {
  static constexpr int STAGE_BYTES = 64 * Width * 2, BYTES = Consumers * Stages * STAGE_BYTES;
  static constexpr int CHUNK = Width < 16 ? Width : 16;  // columns of one stmatrix
  unsigned stages;
  int consumer, thread;
  const ptx::TensorMap& map;
  int next = 0;

  __device__ __forceinline__ TmaStore(unsigned stages, int consumer, int thread, const ptx::TensorMap& map)
      : stages(stages + consumer * (Stages * STAGE_BYTES)), consumer(consumer), thread(thread), map(map) {}

  template <typename T, int Blocks, int Count, typename Evaluate, typename Tile>
  __device__ __forceinline__ void operator()(const T (&results)[Blocks][Count], const Evaluate& evaluate,
                                             const Tile& tile, int first_row) {
    const int m0 = tile.m0 + first_row, n0 = tile.n0, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int s = 0; s < Columns / Width; ++s) {
        const unsigned stage = stages + next * STAGE_BYTES;
        next = next + 1 == Stages ? 0 : next + 1;
        if (thread == 0) ptx::tma_store_wait<Stages - 1>();
        warpgroup_sync<Consumers>(consumer);
#pragma unroll
        for (int j = 0; j < Width / CHUNK; ++j) {
          unsigned packed[CHUNK / 4];
#pragma unroll
          for (int r = 0; r < CHUNK / 4; ++r) {
            const int column = s * Width + j * CHUNK + r / 2 * 8;
            const Value pair[2] = {results[i][column / 2 + r % 2 * 2], results[i][column / 2 + r % 2 * 2 + 1]};
            packed[r] =
                evaluate(pair, m0 + i * 64 + Rows::row(warp, lane, r % 2), n0 + column + lane % 4 * 2).access[0];
          }
          if constexpr (Transposed) {
            const int row = j * CHUNK + (CHUNK == 16 ? lane / 16 * 8 : 0) + lane % 8, unit = warp * 2 + lane / 8 % 2;
            ptx::stmatrix_trans(stage + row * 128 + (unit ^ row % 8) * 16, packed);
          } else {
            const int row = warp * 16 + lane % 16, unit = CHUNK == 16 ? j * 2 + lane / 16 : j;
            constexpr int UNITS = Width / 8;  // of 16 bytes in a row, over which the tensor map swizzles
            ptx::stmatrix(stage + row * (Width * 2) + (unit ^ row / (8 / UNITS) % UNITS) * 16, packed);
          }
        }
        ptx::fence_proxy_async();
        warpgroup_sync<Consumers>(consumer);
        if (thread == 0) {
          const int m = m0 + i * 64, n = n0 + s * Width;
          const int at[] = {Transposed ? m : n, Transposed ? n : m, tile.batch[Batch]...};
          ptx::tma_store(map, stage, at);
          ptx::tma_store_commit();
        }
      }
  }

  // The block may end: nothing reads its shared memory any more.
  __device__ __forceinline__ void drain() const {
    if (thread == 0) ptx::tma_store_wait<0>();
  }
};

//: SharedStore
// Results pass through shared memory, 64 rows by Width columns at a time with rows Width + Padding apart, so that
// neighbouring threads finish neighbouring elements: along m where Transposed. `finish(values, m, n)` is the epilogue
// with the store.
template <typename Value, int Columns, int Width, int Padding, bool Transposed, int Consumers, typename Rows>
struct SharedStore {
  static constexpr int PITCH = Width + Padding, BYTES = Consumers * 64 * PITCH * 4;
  float* stage;
  int consumer, thread;

  __device__ __forceinline__ SharedStore(unsigned char* stages, int consumer, int thread)
      : stage(reinterpret_cast<float*>(stages) + consumer * (64 * PITCH)), consumer(consumer), thread(thread) {}

  template <typename T, int Blocks, int Count, typename Finish, typename Tile>
  __device__ __forceinline__ void operator()(const T (&results)[Blocks][Count], const Finish& finish, const Tile& tile,
                                             int first_row) const {
    const int m0 = tile.m0 + first_row, n0 = tile.n0, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int s = 0; s < Columns / Width; ++s) {
        warpgroup_sync<Consumers>(consumer);
#pragma unroll
        for (int j = 0; j < Width / 8; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int column = s * Width + j * 8;
            float* const to = stage + Rows::row(warp, lane, h) * PITCH + j * 8 + lane % 4 * 2;
            to[0] = results[i][column / 2 + h * 2];
            to[1] = results[i][column / 2 + h * 2 + 1];
          }
        warpgroup_sync<Consumers>(consumer);
#pragma unroll 4
        for (int element = thread; element < 64 * Width; element += 128) {
          const int row = Transposed ? element % 64 : element / Width;
          const int column = Transposed ? element / 64 : element % Width;
          const Value values[1] = {stage[row * PITCH + column]};
          finish(values, m0 + i * 64 + row, n0 + s * Width + column);
        }
      }
  }

  __device__ __forceinline__ void drain() const {}
};

//: DirectStore
// Every lane finishes its own results, two neighbours along n at a time.
template <typename Value, typename Rows>
struct DirectStore {
  static constexpr int BYTES = 0;
  int thread;

  template <typename T, int Blocks, int Count, typename Finish, typename Tile>
  __device__ __forceinline__ void operator()(const T (&results)[Blocks][Count], const Finish& finish, const Tile& tile,
                                             int first_row) const {
    const int m0 = tile.m0 + first_row, n0 = tile.n0, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int j = 0; j < Count / 4; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Value values[2] = {results[i][j * 4 + h * 2], results[i][j * 4 + h * 2 + 1]};
          finish(values, m0 + i * 64 + Rows::row(warp, lane, h), n0 + j * 8 + lane % 4 * 2);
        }
  }

  __device__ __forceinline__ void drain() const {}
};

//: stream_k_fixup
// A worker whose part does not begin the tile leaves its sums, and false is returned; the one whose part does waits for
// the others and adds theirs in order. `partials` and `counters` (0 before the launch and after it) have a place a
// warpgroup.
template <int Consumers, typename T, int Blocks, int Count, typename Scheduler, typename Tile>
__device__ __forceinline__ bool stream_k_fixup(T (&sums)[Blocks][Count], T* partials, int* counters,
                                               const Scheduler& scheduler, const Tile& tile, int consumer, int thread) {
  const auto place = [&](int block) {
    return partials + (static_cast<long long>(block) * Consumers + consumer) * (Blocks * Count * 128) + thread;
  };
  if (tile.k_first > 0) {
    T* const mine = place(blockIdx.x);
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int j = 0; j < Count; ++j) __stcg(mine + (i * Count + j) * 128, sums[i][j]);
    warpgroup_sync<Consumers>(consumer);
    if (thread == 0) ptx::store_release(counters + blockIdx.x * Consumers + consumer, 1);
    return false;
  }
  for (int w = scheduler.grid.worker + 1; w < scheduler.grid.workers && scheduler.first_step(w) < tile.end; ++w) {
    const int block = w * Scheduler::CLUSTER_SIZE + scheduler.grid.rank;
    int* const flag = counters + block * Consumers + consumer;
    ptx::wait_for(flag, 1);
    const T* const other = place(block);
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int j = 0; j < Count; ++j) sums[i][j] += __ldcg(other + (i * Count + j) * 128);
    warpgroup_sync<Consumers>(consumer);
    if (thread == 0) *flag = 0;
  }
  return true;
}

//: SplitKStore
// All Splits workers of a tile leave their sums in `partials`; when all have, each adds up and finishes its share of
// the BM x BN results, two neighbours along n at a time. `counters` are two a tile, 0 before the launch and after it.
template <int BM, int BN, int Splits, int Consumers, typename Rows>
struct SplitKStore {
  static constexpr int BYTES = 0, THREADS = Consumers * 128;
  float* partials;
  int* counters;
  int worker, consumer, thread;

  static __device__ __forceinline__ void sync() { ptx::named_barrier_sync<Consumers + 1, THREADS>(); }

  template <int Blocks, int Count, typename Finish, typename Tile>
  __device__ __forceinline__ void operator()(const float (&sums)[Blocks][Count], const Finish& finish, const Tile& tile,
                                             int first_row) const {
    const int warp = thread / 32, lane = thread % 32;
    float* const tile_sums = partials + static_cast<long long>(worker / Splits) * Splits * (BM * BN);
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int j = 0; j < BN / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = first_row + i * 64 + Rows::row(warp, lane, h);
          const float2 pair = make_float2(sums[i][j * 4 + h * 2], sums[i][j * 4 + h * 2 + 1]);
          float* const to = tile_sums + worker % Splits * (BM * BN) + row * BN + j * 8 + lane % 4 * 2;
          __stcg(reinterpret_cast<float2*>(to), pair);
        }
    int* const arrived = counters + worker / Splits * 2;
    sync();
    if (consumer == 0 && thread == 0) ptx::atomic_add_release(arrived, 1);
    ptx::wait_for(arrived, Splits);
    constexpr int SHARE = BM * BN / 2 / Splits;                  // pairs of a worker
    constexpr int LANES = add_up_lanes(SHARE, THREADS, Splits);  // threads that add up one pair
    for (int first = 0; first < SHARE; first += THREADS / LANES) {
      const int pair = first + (consumer * 128 + thread) / LANES;
      const int element = (worker % Splits * SHARE + pair) * 2;
      float values[2] = {};
      if (pair < SHARE) {
#pragma unroll 8
        for (int s = lane % LANES; s < Splits; s += LANES) {
          const float2 v = __ldcg(reinterpret_cast<const float2*>(tile_sums + s * (BM * BN) + element));
          values[0] += v.x;
          values[1] += v.y;
        }
      }
#pragma unroll
      for (int distance = LANES / 2; distance > 0; distance /= 2) {
        values[0] += __shfl_xor_sync(0xffffffff, values[0], distance);
        values[1] += __shfl_xor_sync(0xffffffff, values[1], distance);
      }
      if (pair < SHARE && lane % LANES == 0) finish(values, tile.m0 + element / BN, tile.n0 + element % BN);
    }
    sync();
    if (consumer == 0 && thread == 0 && ptx::atomic_add_release(arrived + 1, 1) == Splits - 1) {
      arrived[0] = 0;
      arrived[1] = 0;
    }
  }

  __device__ __forceinline__ void drain() const {}
};
