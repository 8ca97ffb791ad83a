// Split-KV: the columns of a tile of rows are shared by several blocks, whose results are combined in a fixed order.

//: split_kv_part
// Part `split` of Splits of a tile's blocks, all as long as the first; the last ones may be shorter, or empty.
template <int Splits>
__device__ __forceinline__ KeyBlocks split_kv_part(const KeyBlocks& blocks, int split) {
  const int count = (max(blocks.last - blocks.first, 0) + Splits - 1) / Splits, first = blocks.first + split * count;
  return {first, min(blocks.last, first + count), blocks.first_full, blocks.last_full};
}

//: split_kv_partial
// The floats that a block of Threads threads leaves of its part, of which a thread has Count sums.
template <int Threads, int Count>
constexpr int split_kv_partial = Threads * (Count + 4);

//: split_kv_combine
// Each of the Splits blocks of a tile leaves what it has summed up, with its rows' maximum and sum, in `partials`. The
// last to do so gets what all columns give, and true. Of a lane's two rows those are kept that are `present`. `counter`
// is the tile's, 0 before the launch and after it. Source: Dao et al., "Flash-Decoding for long-context inference",
// 2023.
template <int Splits, int Threads, int Count, typename Softmax>
__device__ __forceinline__ bool split_kv_combine(float (&sums)[Count], Softmax& softmax, const bool (&present)[2],
                                                 float* partials, int* counter, int split) {
  constexpr int PAIRS = Count / 4;                      // of a row; its maximum and sum are one more
  constexpr int AHEAD = Count < 256 ? 256 / Count : 1;  // partial sums in flight
  const auto pair = [&](int s, int r, int i) {
    float* const partial = partials + s * split_kv_partial<Threads, Count>;
    return reinterpret_cast<float2*>(partial) + (r * (PAIRS + 1) + i) * Threads + threadIdx.x;
  };
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!present[r]) continue;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i)
      __stcg(pair(split, r, i), make_float2(sums[i * 4 + r * 2], sums[i * 4 + r * 2 + 1]));
    __stcg(pair(split, r, PAIRS), make_float2(softmax.maximum[r], softmax.sum[r]));
  }
  if (!is_last_to_arrive<Splits>(counter)) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!present[r]) continue;
    float largest = __int_as_float(0xff800000);
#pragma unroll 8
    for (int s = 0; s < Splits; ++s) largest = fmaxf(largest, __ldcg(pair(s, r, PAIRS)).x);
    softmax.maximum[r] = largest;
    softmax.sum[r] = 0.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) sums[i * 4 + r * 2] = sums[i * 4 + r * 2 + 1] = 0.0f;
#pragma unroll AHEAD
    for (int s = 0; s < Splits; ++s) {
      const float2 row = __ldcg(pair(s, r, PAIRS));
      const float factor = softmax.shrink_of(row.x, largest);
      softmax.sum[r] += factor * row.y;
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) {
        const float2 part = __ldcg(pair(s, r, i));
        sums[i * 4 + r * 2] += factor * part.x;
        sums[i * 4 + r * 2 + 1] += factor * part.y;
      }
    }
  }
  return true;
}

//: SplitTilePerBlock
// As TilePerBlock, where Splits blocks have each tile of rows.
template <typename RowTiles, int Splits>
struct SplitTilePerBlock {
  template <typename Work>
  static __device__ __forceinline__ void for_each(int tiles, int heads, const Work& work) {
    work(RowTiles::of(blockIdx.x / Splits, tiles, heads));
  }
};

//: PartsInMemory
// Where the Splits blocks of a tile leave parts, of so many Pairs of floats, for each other: in memory, and the last
// block combines them. `counters` are 0 before the launch and after it, `last` is in shared memory that nothing reads
// any more.
template <int Splits, int Pairs, int Barrier, int Threads>
struct PartsInMemory {
  static constexpr int SPLITS = Splits, TEAM = 1;  // blocks that combine
  float2* pairs;
  int* counter;
  int* last;

  __device__ __forceinline__ PartsInMemory(float* partials, int* counters, unsigned char* last)
      : pairs(reinterpret_cast<float2*>(partials) + steps(blockIdx.x / Splits, Splits * Pairs)),
        counter(counters + blockIdx.x / Splits),
        last(reinterpret_cast<int*>(last)) {}

  static __device__ __forceinline__ int rank() { return 0; }
  __device__ __forceinline__ void open() const {}
  __device__ __forceinline__ void store(int place, float2 value) const {
    __stcg(pairs + blockIdx.x % Splits * Pairs + place, value);
  }
  // Whether this block combines the parts: all are there then.
  __device__ __forceinline__ bool meet(int thread) const {
    ptx::named_barrier_sync<Barrier, Threads>();
    if (thread == 0) {
      *last = ptx::atomic_add_release(counter, 1) == Splits - 1;
      if (*last) *counter = 0;
      __threadfence();
    }
    ptx::named_barrier_sync<Barrier, Threads>();
    return *last;
  }
  __device__ __forceinline__ float2 load(int split, int place) const { return __ldcg(pairs + split * Pairs + place); }
  __device__ __forceinline__ void close() const {}
};

//: PartsInCluster
// As PartsInMemory, where the blocks of a tile are a cluster: each leaves its part in its shared memory, at `pairs`,
// from which no product is read any more once all Threads have opened it, and all of them combine some columns.
template <int Splits, int Pairs, int Barrier, int Threads>
struct PartsInCluster {
  static constexpr int SPLITS = Splits, TEAM = Splits;
  float2* pairs;

  explicit __device__ __forceinline__ PartsInCluster(unsigned char* pairs) : pairs(reinterpret_cast<float2*>(pairs)) {}

  static __device__ __forceinline__ int rank() { return ptx::cluster_rank(); }
  __device__ __forceinline__ void open() const { ptx::named_barrier_sync<Barrier, Threads>(); }
  __device__ __forceinline__ void store(int place, float2 value) const { pairs[place] = value; }
  __device__ __forceinline__ bool meet(int) const {
    ptx::cluster_sync();
    return true;
  }
  __device__ __forceinline__ float2 load(int split, int place) const {
    return ptx::load_cluster<float2>(ptx::cluster_map(ptx::smem_address(pairs + place), split));
  }
  // No block may leave while another reads its part.
  __device__ __forceinline__ void close() const {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
};

//: split_kv_pairs
// The pairs of floats of a part, of which each of the Warps has 16 rows.
template <int Warps, int Columns>
constexpr int split_kv_pairs = Warps * (Columns / 8 + 1) * 64;

//: SplitKvParts
// As split_kv_combine, by warpgroups of which each warp has 16 rows of Columns columns: the warps of the blocks that
// combine share the columns of each 16 rows, as of few rows one warp alone has all. `thread` counts those of all
// consumers.
template <int Warps, int Columns, typename Memory>
struct SplitKvParts {
  static constexpr int SPLITS = Memory::SPLITS, WARPS = Warps * Memory::TEAM;
  static constexpr int GROUPS = Columns / 8;                  // of eight columns, of which a lane has two
  static constexpr int SHARE = (GROUPS + WARPS - 1) / WARPS;  // of these, that a warp combines
  static constexpr int AHEAD = SHARE > 4 ? 8 : 16;            // parts in flight
  Memory memory;
  int thread;

  // Whether row r of the lane's two is one of so many.
  __device__ __forceinline__ bool present(int r, int rows) const { return thread % 32 / 4 + r * 8 < rows; }

  // Where the lane's columns of a group lie, of row r of its two; beyond the last group are the row's maximum and sum.
  __device__ __forceinline__ int place(int sixteen, int group, int r) const {
    return ((sixteen * (GROUPS + 1) + group) * 2 + r) * 32 + thread % 32;
  }

  // The first of the groups that this thread's warp combines.
  __device__ __forceinline__ int first_group() const { return (memory.rank() * Warps + thread / 32) * SHARE; }

  // Leaves what the block has summed up, of the `rows` that there are from this warp's first on; whether this block
  // combines what all have.
  template <int Count, typename Softmax>
  __device__ __forceinline__ bool leave(const float (&sums)[Count], const Softmax& softmax, int rows) const {
    memory.open();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!present(r, rows)) continue;
#pragma unroll
      for (int i = 0; i < GROUPS; ++i)
        memory.store(place(thread / 32, i, r), make_float2(sums[i * 4 + r * 2], sums[i * 4 + r * 2 + 1]));
      memory.store(place(thread / 32, GROUPS, r), make_float2(softmax.maximum[r], softmax.sum[r]));
    }
    return memory.meet(thread);
  }

  // Combines the parts of 16 rows, of which there are `rows`, in this warp's columns: in the order of the parts, as
  // many at once as registers hold.
  template <typename Softmax>
  __device__ __forceinline__ void combine(float (&sums)[1][SHARE * 4], Softmax& softmax, int rows, int sixteen) const {
    constexpr int COUNT = SPLITS < AHEAD ? SPLITS : AHEAD;
    const int group = first_group();
    fill_sums(sums, 0.0f);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      softmax.maximum[r] = __int_as_float(0xff800000);
      softmax.sum[r] = 0.0f;
      if (!present(r, rows) || group >= GROUPS) continue;
      for (int first = 0; first < SPLITS; first += COUNT) {
        float2 row[COUNT], found[COUNT][SHARE];
#pragma unroll
        for (int s = 0; s < COUNT; ++s) {
          const bool there = SPLITS % COUNT == 0 || first + s < SPLITS;
          row[s] = there ? memory.load(first + s, place(sixteen, GROUPS, r)) : make_float2(softmax.maximum[r], 0.0f);
#pragma unroll
          for (int i = 0; i < SHARE; ++i) {
            const bool mine = there && (GROUPS % WARPS == 0 || group + i < GROUPS);
            found[s][i] = mine ? memory.load(first + s, place(sixteen, group + i, r)) : make_float2(0.0f, 0.0f);
          }
        }
        float largest = softmax.maximum[r];
#pragma unroll
        for (int s = 0; s < COUNT; ++s) largest = fmaxf(largest, row[s].x);
        const float shrink = softmax.shrink_of(softmax.maximum[r], largest);
        softmax.maximum[r] = largest;
        softmax.sum[r] *= shrink;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
          sums[0][i * 4 + r * 2] *= shrink;
          sums[0][i * 4 + r * 2 + 1] *= shrink;
        }
#pragma unroll
        for (int s = 0; s < COUNT; ++s) {
          const float factor = softmax.shrink_of(row[s].x, largest);
          softmax.sum[r] += factor * row[s].y;
#pragma unroll
          for (int i = 0; i < SHARE; ++i) {
            sums[0][i * 4 + r * 2] += factor * found[s][i].x;
            sums[0][i * 4 + r * 2 + 1] += factor * found[s][i].y;
          }
        }
      }
    }
  }
};
