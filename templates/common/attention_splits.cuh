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
