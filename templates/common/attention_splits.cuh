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
template <int Splits, int Threads, int Count>
__device__ __forceinline__ bool split_kv_combine(float (&sums)[Count], OnlineSoftmax& softmax, const bool (&present)[2],
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
    const float offset = largest == __int_as_float(0xff800000) ? 0.0f : largest * softmax.scale;
    softmax.maximum[r] = largest;
    softmax.sum[r] = 0.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) sums[i * 4 + r * 2] = sums[i * 4 + r * 2 + 1] = 0.0f;
#pragma unroll AHEAD
    for (int s = 0; s < Splits; ++s) {
      const float2 row = __ldcg(pair(s, r, PAIRS));
      const float factor = ptx::exp2_approximate(row.x * softmax.scale - offset);
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

//: SplitKvParts
// As split_kv_combine, by warpgroups of which each warp has 16 rows of Columns columns: the last block's warps share
// the columns of each 16 rows, as of few rows one warp alone has all. Blocks are numbered tile by tile; `thread` counts
// those of all Consumers.
template <int Splits, int Consumers, int Columns>
struct SplitKvParts {
  static constexpr int WARPS = Consumers * 4, THREADS = WARPS * 32;
  static constexpr int GROUPS = Columns / 8;                  // of eight columns, of which a lane has two
  static constexpr int SHARE = (GROUPS + WARPS - 1) / WARPS;  // of these, that a warp combines
  static constexpr int AHEAD = SHARE > 4 ? 8 : 16;            // parts in flight
  static constexpr int FLOATS = WARPS * (GROUPS + 1) * 128;   // of a part
  float* parts;                                               // of the tile
  int tile, split, thread;

  __device__ __forceinline__ SplitKvParts(float* partials, int block, int thread)
      : parts(partials + steps(block / Splits, Splits * FLOATS)),
        tile(block / Splits),
        split(block % Splits),
        thread(thread) {}

  // Whether row r of the lane's two is one of so many.
  __device__ __forceinline__ bool present(int r, int rows) const { return thread % 32 / 4 + r * 8 < rows; }

  // Where the lane's columns of a group lie, of row r of its two; beyond the last group are the row's maximum and sum.
  __device__ __forceinline__ float2* pair(int s, int sixteen, int group, int r) const {
    return reinterpret_cast<float2*>(parts + s * FLOATS) + ((sixteen * (GROUPS + 1) + group) * 2 + r) * 32 +
           thread % 32;
  }

  // The first of the columns that this thread's warp combines.
  __device__ __forceinline__ int first_column() const { return thread / 32 * (SHARE * 8); }

  // Leaves what the block has summed up, of the `rows` that there are from this warp's first on; whether all blocks of
  // the tile have. `counters` are 0 before the launch and after it, `last` is in shared memory that nothing reads any
  // more.
  template <int Count>
  __device__ __forceinline__ bool leave(const float (&sums)[Count], const OnlineSoftmax& softmax, int rows,
                                        int* counters, int* last) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!present(r, rows)) continue;
#pragma unroll
      for (int i = 0; i < GROUPS; ++i)
        __stcg(pair(split, thread / 32, i, r), make_float2(sums[i * 4 + r * 2], sums[i * 4 + r * 2 + 1]));
      __stcg(pair(split, thread / 32, GROUPS, r), make_float2(softmax.maximum[r], softmax.sum[r]));
    }
    ptx::named_barrier_sync<Consumers + 1, THREADS>();
    if (thread == 0) {
      *last = ptx::atomic_add_release(counters + tile, 1) == Splits - 1;
      if (*last) counters[tile] = 0;
      __threadfence();
    }
    ptx::named_barrier_sync<Consumers + 1, THREADS>();
    return *last;
  }

  // Combines the parts of 16 rows, of which there are `rows`, in this warp's columns: in the order of the parts, as
  // many at once as registers hold.
  __device__ __forceinline__ void combine(float (&sums)[1][SHARE * 4], OnlineSoftmax& softmax, int rows,
                                          int sixteen) const {
    constexpr int COUNT = Splits < AHEAD ? Splits : AHEAD;
    const int first_group = thread / 32 * SHARE;
    fill_sums(sums, 0.0f);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      softmax.maximum[r] = __int_as_float(0xff800000);
      softmax.sum[r] = 0.0f;
      if (!present(r, rows)) continue;
      for (int first = 0; first < Splits; first += COUNT) {
        float2 row[COUNT], found[COUNT][SHARE];
#pragma unroll
        for (int s = 0; s < COUNT; ++s) {
          const bool there = Splits % COUNT == 0 || first + s < Splits;
          row[s] = there ? __ldcg(pair(first + s, sixteen, GROUPS, r)) : make_float2(softmax.maximum[r], 0.0f);
#pragma unroll
          for (int i = 0; i < SHARE; ++i) {
            const bool mine = there && (GROUPS % WARPS == 0 || first_group + i < GROUPS);
            found[s][i] = mine ? __ldcg(pair(first + s, sixteen, first_group + i, r)) : make_float2(0.0f, 0.0f);
          }
        }
        float largest = softmax.maximum[r];
#pragma unroll
        for (int s = 0; s < COUNT; ++s) largest = fmaxf(largest, row[s].x);
        const float offset = largest == __int_as_float(0xff800000) ? 0.0f : largest * softmax.scale;
        const float shrink = ptx::exp2_approximate(softmax.maximum[r] * softmax.scale - offset);
        softmax.maximum[r] = largest;
        softmax.sum[r] *= shrink;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
          sums[0][i * 4 + r * 2] *= shrink;
          sums[0][i * 4 + r * 2 + 1] *= shrink;
        }
#pragma unroll
        for (int s = 0; s < COUNT; ++s) {
          const float factor = ptx::exp2_approximate(row[s].x * softmax.scale - offset);
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
