// Split-K: the sums of an output tile over parts of K, by several blocks, are added up in a fixed order through partial
// sums in global memory, so that results are the same from run to run.

//: store_partial
// Leaves a thread's share of the Elements sums of a tile in memory: at `mine`, where the thread's own begin, and every
// Threads elements from there.
template <int Elements, int Threads, typename T, int Count>
__device__ __forceinline__ void store_partial(T* mine, const T (&sums)[Count], int thread) {
#pragma unroll
  for (int i = 0; i < Count; ++i)
    if (Elements % Threads == 0 || i * Threads + thread < Elements) __stcg(mine + i * Threads, sums[i]);
}

//: add_partial
// Adds what store_partial has left at `mine`. A thread past the last sum reads that one: no load waits for a branch.
template <int Elements, int Threads, typename T, int Count>
__device__ __forceinline__ void add_partial(T (&sums)[Count], const T* mine, int thread) {
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const int at = Elements % Threads == 0 ? i * Threads : min(i * Threads, Elements - 1 - thread);
    sums[i] += __ldcg(mine + at);
  }
}

//: is_last_to_arrive
// Whether a block is the last of the Blocks that share `counter`, 0 before the launch and after it: that one sees what
// all of them have stored.
template <int Blocks>
__device__ __forceinline__ bool is_last_to_arrive(int* counter) {
  __threadfence();
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) last = atomicAdd(counter, 1) == Blocks - 1;
  if (!__syncthreads_or(last)) return false;
  if (threadIdx.x == 0) *counter = 0;
  __threadfence();
  return true;
}

//: split_k_fixup
// Each of the Splits blocks of a tile leaves its sums in `partials`. The last to do so gets the sums of all, and true.
// `counter` is the tile's, 0 before the launch and after it.
template <int Splits, int Elements, int Threads, typename T, int Count>
__device__ __forceinline__ bool split_k_fixup(T (&sums)[Count], T* partials, int* counter, int split) {
  const int thread = threadIdx.x;
  T* const mine = partials + thread;
  store_partial<Elements, Threads>(mine + split * Elements, sums, thread);
  if (!is_last_to_arrive<Splits>(counter)) return false;
#pragma unroll
  for (int i = 0; i < Count; ++i) sums[i] = 0;
  constexpr int AHEAD = Count < 16 ? 16 / Count : 1;  // partial sums in flight
#pragma unroll AHEAD
  for (int s = 0; s < Splits; ++s) add_partial<Elements, Threads>(sums, mine + s * Elements, thread);
  return true;
}

//: stream_k_fixup
// A worker whose share does not begin the tile leaves its sums, and false is returned; the one whose share does waits
// for the others and adds theirs in order. `partials` and `counters` (0 before the launch and after it) have a place a
// warpgroup.
template <int Consumers, typename T, int Blocks, int Count, typename Scheduler, typename Tile>
__device__ __forceinline__ bool stream_k_fixup(T (&sums)[Blocks][Count], T* partials, int* counters,
                                               const Scheduler& scheduler, const Tile& tile, int consumer, int thread) {
  constexpr int SUMS = Count * 128;  // of 64 rows
  if (tile.k_first > 0) {
    const int place = blockIdx.x * Consumers + consumer;
    T* const mine = partials + static_cast<long long>(place) * (Blocks * SUMS) + thread;
#pragma unroll
    for (int i = 0; i < Blocks; ++i) store_partial<SUMS, 128>(mine + i * SUMS, sums[i], thread);
    warpgroup_sync<Consumers>(consumer);
    if (thread == 0) ptx::store_release(counters + place, 1);
    return false;
  }
  for (int w = scheduler.grid.worker + 1; w < scheduler.grid.workers && scheduler.first_step(w) < tile.end; ++w) {
    const int place = (w * scheduler.grid.CLUSTER_SIZE + scheduler.grid.rank) * Consumers + consumer;
    ptx::wait_for(counters + place, 1);
    const T* const mine = partials + static_cast<long long>(place) * (Blocks * SUMS) + thread;
#pragma unroll
    for (int i = 0; i < Blocks; ++i) add_partial<SUMS, 128>(sums[i], mine + i * SUMS, thread);
    warpgroup_sync<Consumers>(consumer);
    if (thread == 0) counters[place] = 0;
  }
  return true;
}

//: add_up_lanes
// How many threads, a power of two of at most 32, take one of `share` sums of `parts` parts when there are `threads`.
constexpr __device__ int add_up_lanes(int share, int threads, int parts) {
  int lanes = 1;
  while (lanes < 32 && lanes * 2 <= parts && share * lanes * 2 <= threads) lanes *= 2;
  return lanes;
}

//: SplitKStore
// All Splits blocks of a tile leave their sums in `partials`; when all have, each adds up and finishes its share of the
// BM x BN results, two neighbours along n at a time: pairs one after the other along n, or ByColumns along m, as
// results lie in memory. `counters` are two a tile, 0 before the launch and after it.
template <int BM, int BN, int Splits, int Consumers, typename Rows, bool ByColumns>
struct SplitKStore {
  static constexpr int BYTES = 0, THREADS = Consumers * 128;
  static constexpr int NEXT_ROW = ByColumns ? 2 : BN, NEXT_PAIR = ByColumns ? 2 * BM : 2;  // in a tile's sums
  float* partials;
  int* counters;
  int tile_index, split, consumer, thread;

  static __device__ __forceinline__ void sync() { ptx::named_barrier_sync<Consumers + 1, THREADS>(); }

  template <int Blocks, int Count, typename Finish, typename Tile>
  __device__ __forceinline__ void operator()(const float (&sums)[Blocks][Count], const Finish& finish, const Tile& tile,
                                             int first_row) const {
    const int warp = thread / 32, lane = thread % 32;
    float* const tile_sums = partials + static_cast<long long>(tile_index) * Splits * (BM * BN);
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int j = 0; j < BN / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = first_row + i * 64 + Rows::row(warp, lane, h);
          const float2 pair = make_float2(sums[i][j * 4 + h * 2], sums[i][j * 4 + h * 2 + 1]);
          float* const to = tile_sums + split * (BM * BN) + row * NEXT_ROW + j * (4 * NEXT_PAIR) + lane % 4 * NEXT_PAIR;
          __stcg(reinterpret_cast<float2*>(to), pair);
        }
    int* const arrived = counters + tile_index * 2;
    sync();
    if (consumer == 0 && thread == 0) ptx::atomic_add_release(arrived, 1);
    ptx::wait_for(arrived, Splits);
    constexpr int SHARE = BM * BN / 2 / Splits;                  // pairs of a block
    constexpr int LANES = add_up_lanes(SHARE, THREADS, Splits);  // threads that add up one pair
    for (int first = 0; first < SHARE; first += THREADS / LANES) {
      const int pair = first + (consumer * 128 + thread) / LANES;
      const int element = (split * SHARE + pair) * 2;
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
      if (pair < SHARE && lane % LANES == 0) {
        const int row = ByColumns ? element / 2 % BM : element / BN;
        const int n = ByColumns ? element / (2 * BM) * 2 : element % BN;
        finish(values, tile.m0 + row, tile.n0 + n);
      }
    }
    sync();
    if (consumer == 0 && thread == 0 && ptx::atomic_add_release(arrived + 1, 1) == Splits - 1) {
      arrived[0] = 0;
      arrived[1] = 0;
    }
  }

  __device__ __forceinline__ void drain() const {}
};

//: ClusterSplitStore
// The blocks of a cluster leave their sums of a tile of BN columns in shared memory, over its stages; when all have,
// each adds up and finishes some of each lane's pairs along n, as wgmma leaves them.
template <int BN, typename Cluster, int Consumers, typename Rows>
struct ClusterSplitStore {
  static constexpr int BYTES = 0, THREADS = Consumers * 128;
  unsigned tile_sums;
  int consumer, thread;

  template <int Blocks, int Count, typename Finish, typename Tile>
  __device__ __forceinline__ void operator()(const float (&sums)[Blocks][Count], const Finish& finish, const Tile& tile,
                                             int first_row) const {
    constexpr int ACROSS = BN / 8, CHUNKS = Blocks * ACROSS;  // four sums each
    const int warp = thread / 32, lane = thread % 32;
    const unsigned own = tile_sums + (consumer * (CHUNKS * 128) + thread) * 16;
    ptx::named_barrier_sync<Consumers + 1, THREADS>();  // nobody reads the stages any more
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const float* const four = &sums[chunk / ACROSS][chunk % ACROSS * 4];
      ptx::store_cluster(ptx::cluster_map(own + chunk * (128 * 16), Cluster::rank()),
                         make_float4(four[0], four[1], four[2], four[3]));
    }
    Cluster::sync();
    for (int chunk = Cluster::rank(); chunk < CHUNKS; chunk += Cluster::SIZE) {
      float4 total = {};
#pragma unroll
      for (int s = 0; s < Cluster::SIZE; ++s) {
        const float4 part = ptx::load_cluster<float4>(ptx::cluster_map(own + chunk * (128 * 16), s));
        total.x += part.x;
        total.y += part.y;
        total.z += part.z;
        total.w += part.w;
      }
      const int m = tile.m0 + first_row + chunk / ACROSS * 64, n = tile.n0 + chunk % ACROSS * 8 + lane % 4 * 2;
      const float upper[2] = {total.x, total.y}, lower[2] = {total.z, total.w};
      finish(upper, m + Rows::row(warp, lane, 0), n);
      finish(lower, m + Rows::row(warp, lane, 1), n);
    }
  }

  __device__ __forceinline__ void drain() const {}
};
