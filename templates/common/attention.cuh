// Attention: a warp has 16 rows of the queries, and goes over blocks of keys and values. A lane has two of the rows, as
// mma.sync and wgmma leave their results, with a share of their columns that four lanes together have whole.

//: OnlineSoftmax
// The running maximum of two rows' scores and this lane's share of the sum of exp2(scale * (score - maximum)), scale >
// 0. Rows of -infinity alone have a maximum of -infinity and a sum of 0. Where scores may be Far from 0 (a mask that is
// added), the difference is made first: scale * score may overflow, and its rounding be more than 1. Source: Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018. Where Raised, for what rounds coarsely below some
// number, exponentials and their sum are 2 to the Raised times as large, and the power of two above the maximum is in
// its place, so that what was rounded before is multiplied by powers of two. Where Late, an older maximum stays until
// one of a warp's rows has grown by more than 2^GROWTH: exponentials are up to so large, and sums are not multiplied
// (Zadouri et al., "FlashAttention-4", 2026). Of every Polynomial exponentials one is computed by a polynomial, beside
// the special function unit (the same).
template <bool Far, int Raised = 0, bool Late = false, int Polynomial = 0>
struct OnlineSoftmax {
  static_assert(!Far || Raised == 0, "a power of two is not made of numbers that may overflow");
  static_assert(!Late || Raised == 0, "exponentials that are raised have no room to grow");
  static constexpr float GROWTH = 8;
  float scale;
  float maximum[2], sum[2];

  explicit __device__ __forceinline__ OnlineSoftmax(float scale) : scale(scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = __int_as_float(0xff800000);
      sum[r] = 0.0f;
    }
  }

  // What sums are multiplied by when their row's maximum, `before`, is `now`.
  __device__ __forceinline__ float shrink_of(float before, float now) const {
    if constexpr (Raised > 0) return ptx::exp2_approximate(ceilf(before * scale) - ceilf(origin(now) * scale));
    return ptx::exp2_approximate((before - origin(now)) * scale);
  }

  // Makes scores their exponentials. Whether what was summed up before is to be multiplied by `shrink`: in all lanes.
  template <int Count>
  __device__ __forceinline__ bool update(float (&scores)[Count], float (&shrink)[2]) {
    if constexpr (Late) {
      const float now[2] = {largest(scores, 0), largest(scores, 1)};
      const bool grown =
          (now[0] - maximum[0]) * scale > GROWTH || (now[1] - maximum[1]) * scale > GROWTH;  // of -infinity no more
      const bool shrinks = __any_sync(0xffffffff, grown);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        shrink[r] = 1.0f;
        if (shrinks) {
          shrink[r] = shrink_of(maximum[r], now[r]);
          maximum[r] = now[r];
        }
        exponentiate(scores, r, shrink[r]);
      }
      return shrinks;
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float now = largest(scores, r);
        shrink[r] = shrink_of(maximum[r], now);
        maximum[r] = now;
        exponentiate(scores, r, shrink[r]);
      }
      return true;
    }
  }

  // What a row's exponentials are taken below, as a power of two, where they are Raised.
  __device__ __forceinline__ float origin_of(int r) const { return ceilf(origin(maximum[r]) * scale); }

  // The sums of whole rows, once all columns have been seen.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
    }
  }

 private:
  static __device__ __forceinline__ float origin(float largest) {
    return largest == __int_as_float(0xff800000) ? 0.0f : largest;
  }

  // The largest of a row's scores and those before.
  template <int Count>
  __device__ __forceinline__ float largest(const float (&scores)[Count], int r) const {
    float found = maximum[r];
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) found = fmaxf(found, fmaxf(scores[j * 4 + r * 2], scores[j * 4 + r * 2 + 1]));
    found = fmaxf(found, __shfl_xor_sync(0xffffffff, found, 1));
    return fmaxf(found, __shfl_xor_sync(0xffffffff, found, 2));
  }

  template <int Count>
  __device__ __forceinline__ void exponentiate(float (&scores)[Count], int r, float shrink) {
    const float whole = origin(maximum[r]) * (Far ? 1.0f : scale);
    const float offset = Raised > 0 ? ceilf(whole) - Raised : whole;
    float added = 0.0f;
#pragma unroll
    for (int j = 0; j < Count / 4; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& score = scores[j * 4 + r * 2 + c];
        const float power = Far ? (score - offset) * scale : score * scale - offset;
        if constexpr (Polynomial > 0)
          score = (j * 2 + c) % Polynomial == 0 ? exp2_polynomial(power) : ptx::exp2_approximate(power);
        else
          score = ptx::exp2_approximate(power);
        added += score;
      }
    sum[r] = sum[r] * shrink + added;
  }
};

//: NoNormaliser
// In the place of OnlineSoftmax, of weights that scores are already: nothing is kept of a row, so that nothing that was
// summed up is ever multiplied.
struct NoNormaliser {
  float maximum[2], sum[2];  // what parts of the columns leave for each other

  __device__ __forceinline__ NoNormaliser() : maximum{}, sum{} {}

  static __device__ __forceinline__ float shrink_of(float, float) { return 1.0f; }

  template <int Count>
  static __device__ __forceinline__ bool update(float (&)[Count], float (&shrink)[2]) {
    shrink[0] = shrink[1] = 1.0f;
    return false;
  }

  static __device__ __forceinline__ void finish() {}
};

//: DroppedWeights
// Which of a lane's elements of 16 rows and Columns columns are dropped: those whose random number (random_vector) is
// below p. A row's number in column 0 is `first`, neighbouring columns' numbers are `step` apart; `line` of them are
// consecutive, those of columns, or of rows where Transposed. Lines of whole blocks of Philox have each block made by
// one of the lanes that want it.
template <int Columns, bool Transposed>
struct DroppedWeights {
  static constexpr int GROUPS = Columns / 8;  // of eight columns, of which a lane has two of each of its rows
  unsigned bits[(GROUPS + 7) / 8];

  __device__ __forceinline__ void draw(const long long (&first)[2], long long step, int line, int column, int lane,
                                       float p, long long seed, long long offset) {
    const unsigned limit = static_cast<unsigned>(ceilf(p * 0x1p24f));
    // Of the four numbers from `index` on, a multiple of four, a bit each.
    const auto below = [&](long long index) {
      const uint4 words =
          philox(static_cast<unsigned long long>(offset) + static_cast<unsigned long long>(index) / 4, seed);
      return (words.x >> 8 < limit ? 1u : 0u) | (words.y >> 8 < limit ? 2u : 0u) | (words.z >> 8 < limit ? 4u : 0u) |
             (words.w >> 8 < limit ? 8u : 0u);
    };
    const bool whole = line % 4 == 0;
#pragma unroll
    for (int word = 0; word < (GROUPS + 7) / 8; ++word) {
      bits[word] = 0;
#pragma unroll 1
      for (int group = 0; group < 8 && word * 8 + group < GROUPS; ++group) {
        const int at = column + (word * 8 + group) * 8;
        const unsigned four = whole ? together(first, step, at, lane, below) : alone(first, step, at, lane, below);
        bits[word] |= four << group * 4;
      }
    }
  }

  __device__ __forceinline__ bool operator()(int c) const { return bits[c / 32] >> c % 32 & 1; }

 private:
  // A lane's four elements, each by itself.
  template <typename Below>
  static __device__ __forceinline__ unsigned alone(const long long (&first)[2], long long step, int column, int lane,
                                                   const Below& below) {
    unsigned four = 0;
#pragma unroll 1
    for (int c = 0; c < 4; ++c) {
      const long long index = (c < 2 ? first[0] : first[1]) + (column + lane % 4 * 2 + c % 2) * step;
      four |= (below(index - index % 4) >> index % 4 & 1) << c;
    }
    return four;
  }

  // The same by blocks, each made by one lane.
  template <typename Below>
  static __device__ __forceinline__ unsigned together(const long long (&first)[2], long long step, int column, int lane,
                                                      const Below& below) {
    if constexpr (Transposed) {  // of four lanes with the same columns, whose rows are four neighbours
      const int own = lane / 4 % 4;
      const long long row = (own < 2 ? first[0] : first[1]) - own;
      const unsigned made = below(row + (column + lane % 4 * 2 + own % 2) * step);
      unsigned four = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c) four |= (__shfl_sync(0xffffffff, made, (lane & ~12) | c << 2) >> own & 1) << c;
      return four;
    } else {  // of two lanes, which have four columns of the same two rows
      const unsigned made = below((lane % 2 ? first[1] : first[0]) + column + lane % 4 / 2 * 4);
      const unsigned other = __shfl_xor_sync(0xffffffff, made, 1);
      const unsigned of_first = lane % 2 ? other : made, of_second = lane % 2 ? made : other;
      return (of_first >> lane % 2 * 2 & 3) | (of_second >> lane % 2 * 2 & 3) << 2;
    }
  }
};

//: scale_rows
// Multiplies the two rows of a lane, in all columns.
template <int Count>
__device__ __forceinline__ void scale_rows(float (&sums)[Count], const float (&factors)[2]) {
#pragma unroll
  for (int j = 0; j < Count; ++j) sums[j] *= factors[j / 2 % 2];
}

//: RegisterWeights
// The accumulators of one product as the A of the next, rounded to T, of which an instruction takes Step along K: its
// columns are neighbouring groups of eight of theirs, and lie where they are wanted.
template <typename T, int Depth, int Step>
struct RegisterWeights {
  static constexpr int WORDS = Step / 4;
  unsigned fragments[Depth / Step][WORDS];

  __device__ __forceinline__ void take(const float (&weights)[Depth / 2]) {
#pragma unroll
    for (int i = 0; i < Depth / 4; ++i) {
      Vector<T, 2> pair;
      pair[0] = static_cast<T>(weights[i * 2]);
      pair[1] = static_cast<T>(weights[i * 2 + 1]);
      fragments[i / WORDS][i % WORDS] = pair.access[0];
    }
  }

  __device__ __forceinline__ const unsigned (&operator()(int, int step) const)[WORDS] { return fragments[step]; }
};

//: RegisterWeights8
// As RegisterWeights, of 8 bits, of which a lane has Four neighbours of a row in a word: pairs come from the two lanes
// that have them.
template <typename Four, int Depth>
struct RegisterWeights8 {
  unsigned fragments[Depth / 32][4];

  __device__ __forceinline__ void take(const float (&weights)[Depth / 2]) {
    const int lane = threadIdx.x % 32, from = (lane & ~3) | lane * 2 % 4;
#pragma unroll
    for (int i = 0; i < Depth / 8; ++i) {  // 16 columns of a row: of eight of them, and of the eight behind these
      const int first = i / 2 * 8 + i % 2 * 2;
      const Four own(make_float4(weights[first], weights[first + 1], weights[first + 4], weights[first + 5]));
      const unsigned left = __shfl_sync(0xffffffff, own.__x, from);
      const unsigned right = __shfl_sync(0xffffffff, own.__x, from + 1);
      fragments[i / 4][i / 2 % 2 * 2 + i % 2] = __byte_perm(left, right, lane % 4 < 2 ? 0x5410 : 0x7632);
    }
  }

  __device__ __forceinline__ const unsigned (&operator()(int, int step) const)[4] { return fragments[step]; }
};

//: multiply_columns
// Adds the products of 16 rows, a step of K of them in `a`, with all columns of a tile of B.
template <int Units, int Columns, typename Sums, typename Operand, typename T, typename Mma>
__device__ __forceinline__ void multiply_columns(Sums (&sums)[Columns], const unsigned (&a)[2 * Units],
                                                 const Operand& operand, const T* tiles, int stage, int k,
                                                 const Mma& mma) {
#pragma unroll
  for (int j = 0; j < Columns / 2; ++j) {
    unsigned b[2][Units];
    operand.load(reinterpret_cast<unsigned (&)[2 * Units]>(b), tiles, stage, j, k);
    mma(sums[j * 2], a, b[0]);
    mma(sums[j * 2 + 1], a, b[1]);
  }
}

//: HalfSums
// Sums of a warp's 16 rows and of Columns columns in f16, two neighbours of a row to a register, as multiply_columns
// takes them.
template <int Columns>
struct HalfSums {
  unsigned pairs[Columns / 8][2] = {};

  // The sums in f32, as a product that sums in f32 leaves them.
  __device__ __forceinline__ void widen(float (&sums)[Columns / 2]) const {
#pragma unroll
    for (int i = 0; i < Columns / 4; ++i) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(pairs[i / 2][i % 2]));
      sums[i * 2] = pair.x;
      sums[i * 2 + 1] = pair.y;
    }
  }
};

//: HalfMeans
// HalfSums of values by weights, both divided by `norm`, which is the row's sum of exponentials or up to twice that: by
// themselves they would overflow. What was summed before is multiplied by powers of two, so that nothing is rounded.
template <int Columns>
struct HalfMeans : HalfSums<Columns> {
  float norm[2] = {};

  // Before values are added by these weights: `shrink` and the lane's share of the row's `sum` are OnlineSoftmax's.
  template <int Count>
  __device__ __forceinline__ void normalize(float (&weights)[Count], const float (&shrink)[2], const float (&sum)[2]) {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = sum[r] + __shfl_xor_sync(0xffffffff, sum[r], 1);
      now += __shfl_xor_sync(0xffffffff, now, 2);
      const float before = norm[r] * shrink[r];
      const float ratio = before * ptx::reciprocal_approximate(now);
      const float power = __int_as_float(__float_as_int(ratio) & 0x7f800000);  // of two, the ratio at most
      const float factor = now > before ? power : 1.0f;
      norm[r] = factor < 0x1p-24f ? now : before * ptx::reciprocal_approximate(factor);
      inverse[r] = norm[r] > 0.0f ? ptx::reciprocal_approximate(norm[r]) : 0.0f;
#pragma unroll
      for (int j = 0; j < Columns / 8; ++j) {
        __half2& pair = reinterpret_cast<__half2&>(this->pairs[j][r]);
        pair = __hmul2(pair, __float2half2_rn(factor));
      }
    }
    scale_rows(weights, inverse);
  }

  // The sums in f32, by weights that are exponentials.
  __device__ __forceinline__ void widen(float (&sums)[Columns / 2]) const {
    HalfSums<Columns>::widen(sums);
    scale_rows(sums, norm);
  }
};

//: KeyBlocks
// Of the blocks of columns that a tile of rows needs, those from `first` to before `last`; of these, no mask is needed
// from `first_full` to before `last_full`.
struct KeyBlocks {
  int first, last, first_full, last_full;

  __device__ __forceinline__ bool masked(int block) const { return block < first_full || block >= last_full; }
};

//: SeenColumns
// Of the columns that the rows of a tile see, where the first and the last of them lie, and those that all rows see:
// from `first` to before `last` each.
struct SeenColumns {
  int first, last, first_by_all, last_by_all;
};

//: seen_by_rows
// Those of the rows from `begin` to before `end`, of which row r sees the columns from of(r).x to before of(r).y. The
// lanes of a warp share the rows, and have the same answer.
template <typename Of>
__device__ __forceinline__ SeenColumns seen_by_rows(int begin, int end, const Of& of) {
  constexpr int FAR = 1 << 30;
  SeenColumns seen{FAR, -FAR, -FAR, FAR};
  for (int r = begin + threadIdx.x % 32; r < end; r += 32) {
    const int2 columns = of(r);
    seen.first = min(seen.first, columns.x);
    seen.last = max(seen.last, columns.y);
    seen.first_by_all = max(seen.first_by_all, columns.x);
    seen.last_by_all = min(seen.last_by_all, columns.y);
  }
  return {ptx::reduce_min(seen.first), ptx::reduce_max(seen.last), ptx::reduce_max(seen.first_by_all),
          ptx::reduce_min(seen.last_by_all)};
}

//: RowTilesInOrder
// Which tile of rows of which head a block has: those of a head one after another.
struct RowTilesInOrder {
  static __device__ __forceinline__ int2 of(int block, int tiles, int) {
    return make_int2(block % tiles, block / tiles);
  }
};

//: FirstRowTilesFirst
// From the first tile of rows to the last, of Group heads side by side: where a mask leaves the first ones the most
// columns.
template <int Group>
struct FirstRowTilesFirst {
  static __device__ __forceinline__ int2 of(int block, int tiles, int heads) {
    const int first = block / (Group * tiles) * Group, beside = min(Group, heads - first),
              within = block - first * tiles;
    return make_int2(within / beside, first + within % beside);
  }
};

//: LongestRowTilesFirst
// The same from the last tile, which has the most columns where a mask is causal, to the first.
template <int Group>
struct LongestRowTilesFirst {
  static __device__ __forceinline__ int2 of(int block, int tiles, int heads) {
    const int2 at = FirstRowTilesFirst<Group>::of(block, tiles, heads);
    return make_int2(tiles - 1 - at.x, at.y);
  }
};

//: TilePerBlock
// The schedulers of tiles of rows: `work` has a tile's number within its head, and the head's. Here a block has one
// tile, in the order of RowTiles, and the hardware hands them out.
template <typename RowTiles>
struct TilePerBlock {
  template <typename Work>
  static __device__ __forceinline__ void for_each(int tiles, int heads, const Work& work) {
    work(RowTiles::of(blockIdx.x, tiles, heads));
  }
};

//: PersistentTiles
// As many blocks as there are SMs take tiles in turn, those of a head one after another.
struct PersistentTiles {
  template <typename Work>
  static __device__ __forceinline__ void for_each(int tiles, int heads, const Work& work) {
    for (int index = blockIdx.x; index < tiles * heads; index += gridDim.x)
      work(RowTilesInOrder::of(index, tiles, heads));
  }
};

//: PersistentPairs
// As PersistentTiles, two tiles at a time: the first and the last of a head, the second and the last but one. Where a
// mask is causal, all pairs have as many columns.
struct PersistentPairs {
  template <typename Work>
  static __device__ __forceinline__ void for_each(int tiles, int heads, const Work& work) {
    const int pairs = (tiles + 1) / 2;
    for (int index = blockIdx.x; index < pairs * heads; index += gridDim.x) {
      const int first = index % pairs, last = tiles - 1 - first;
#pragma unroll 1
      for (int tile = last;; tile = first) {
        work(make_int2(tile, index / pairs));
        if (tile == first) break;
      }
    }
  }
};
