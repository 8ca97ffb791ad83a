// Linear attention: the decay of a chunk of rows, and the state, which a warp holds transposed as accumulators: its
// rows are columns of the values, its columns those of the keys. A warpgroup of wgmma holds it the other way round.

//: ChunkDecay
// Of a chunk's rows, what is left of the state that comes in at each of them, and of each of them in the state that
// goes out; `sums` are the logarithms to base 2 of decay, added up to each row; `whole` is what is left of the state.
template <int Rows>
struct ChunkDecay {
  float sums[Rows], in[Rows], out[Rows], whole;
};

//: DecayScan
// A warp's way from logarithms of decay to a ChunkDecay: `load` begins with a chunk, `store` ends with it. Rows beyond
// the end have no decay.
template <int Rows, bool Backwards>
struct DecayScan {
  static constexpr int COUNT = (Rows + 31) / 32;
  float logarithms[COUNT];

  template <typename Read>
  __device__ __forceinline__ void load(int first, int end, const Read& read) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int row = i * 32 + threadIdx.x % 32;
      logarithms[i] = row < Rows && first + row < end ? read(first + row) * 1.44269504f : 0.0f;
    }
  }

  __device__ __forceinline__ void store(ChunkDecay<Rows>& decay) const {
    const int lane = threadIdx.x % 32;
    float sums[COUNT], total = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      float sum = logarithms[i];
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += before;
      }
      sums[i] = total + sum;
      total = __shfl_sync(0xffffffffu, sums[i], 31);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int row = i * 32 + lane;
      if (row < Rows) {
        const float up_to = ptx::exp2_approximate(sums[i]), after = ptx::exp2_approximate(total - sums[i]);
        decay.sums[row] = sums[i];
        decay.in[row] = Backwards ? after : up_to;
        decay.out[row] = Backwards ? up_to : after;
      }
    }
    if (lane == 0) decay.whole = ptx::exp2_approximate(total);
  }
};

//: split_pair
// Two numbers as T, rounded by `round` together, and what that cut off, as T: together twice as many digits. Nothing
// was cut off infinity.
template <typename T, typename Round>
__device__ __forceinline__ void split_pair(float x, float y, unsigned& rounded, unsigned& rest, const Round& round) {
  const auto first = round(x, y);
  rounded = reinterpret_cast<const unsigned&>(first);
  Vector<T, 2> pair;
  pair.access[0] = rounded;
  float cut[2] = {x - static_cast<float>(pair[0]), y - static_cast<float>(pair[1])};
#pragma unroll
  for (int i = 0; i < 2; ++i) cut[i] = fabsf(cut[i]) < __int_as_float(0x7f800000) ? cut[i] : 0.0f;
  const auto second = round(cut[0], cut[1]);
  rest = reinterpret_cast<const unsigned&>(second);
}

//: multiply_state
// Adds the products of all rows of queries with the state: its accumulators are fragments of B as they lie.
template <typename T, int Rows, int Columns, int Depth, typename Queries, typename Mma, typename Round>
__device__ __forceinline__ void multiply_state(float (&results)[Rows][Columns][4],
                                               const float (&state)[Columns / 2][Depth][4], const Queries& queries,
                                               const T* tiles, int stage, const Mma& mma, const Round& round) {
#pragma unroll
  for (int k = 0; k < Depth / 2; ++k) {
    unsigned rounded[Columns][2], rest[Columns][2];
#pragma unroll
    for (int j = 0; j < Columns; ++j)
#pragma unroll
      for (int unit = 0; unit < 2; ++unit) {
        const float (&pair)[4] = state[j / 2][k * 2 + unit];
        split_pair<T>(pair[j % 2 * 2], pair[j % 2 * 2 + 1], rounded[j][unit], rest[j][unit], round);
      }
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      unsigned a[4];
      queries.load(a, tiles, stage, i, k);
#pragma unroll
      for (int j = 0; j < Columns; ++j) {
        mma(results[i][j], a, rounded[j]);
        mma(results[i][j], a, rest[j]);
      }
    }
  }
}

//: scale_steps
// Multiplies a fragment of A by a factor for each step along K.
template <typename T>
__device__ __forceinline__ void scale_steps(unsigned (&a)[4], const float* factors) {
  const int first = threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    Vector<T, 2> pair;
    pair.access[0] = a[r];
#pragma unroll
    for (int e = 0; e < 2; ++e) pair[e] = static_cast<T>(static_cast<float>(pair[e]) * factors[r / 2 * 8 + first + e]);
    a[r] = pair.access[0];
  }
}

//: SharedRows
// A of a warpgroup's 64 rows, a tile in shared memory that is K-major.
template <typename Tile>
struct SharedRows {
  unsigned long long descriptor;

  __device__ __forceinline__ void load(unsigned tile, int, int) { descriptor = Tile::descriptor(tile); }

  __device__ __forceinline__ unsigned long long operator()(int, int step) const {
    return descriptor + Tile::offset(0, step) / 16;
  }
};

//: RegisterRows
// The same in registers: read once for several products.
template <typename Tile>
struct RegisterRows {
  unsigned fragments[Tile::STEPS][4];

  __device__ __forceinline__ void load(unsigned tile, int warp, int lane) {
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < Tile::STEPS; ++step)
      ptx::ldmatrix(fragments[step],
                    tile + Tile::offset(row, step / 4 * 4) + ((step % 4 * 2 + lane / 16) ^ row % 8) * 16);
  }

  __device__ __forceinline__ const unsigned (&operator()(int, int step) const)[4] { return fragments[step]; }
};

//: store_state
// By a warpgroup: its accumulators as two tiles of B in shared memory, of what is rounded to T and of what that cut
// off.
template <typename T, typename Tile, int Blocks, int Count, typename Round>
__device__ __forceinline__ void store_state(unsigned rounded, unsigned rest, const float (&state)[Blocks][Count],
                                            int warp, int lane, const Round& round) {
#pragma unroll
  for (int i = 0; i < Blocks; ++i)
#pragma unroll
    for (int j = 0; j < Count / 8; ++j) {
      unsigned first[4], second[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float* const pair = state[i] + j * 8 + r / 2 * 4 + r % 2 * 2;
        split_pair<T>(pair[0], pair[1], first[r], second[r], round);
      }
      const unsigned offset = Tile::offset(j / 4 * 64, i * 4);
      RowMajorStage<64>::store(rounded + offset, j % 4, warp, lane, first);
      RowMajorStage<64>::store(rest + offset, j % 4, warp, lane, second);
    }
}

//: scale_tile
// By the 128 threads of a warpgroup: a tile that is MN-major, each k multiplied by its factor on the way.
template <typename T, typename Tile>
__device__ __forceinline__ void scale_tile(unsigned char* to, const unsigned char* from, const float* factors,
                                           int thread) {
#pragma unroll
  for (int i = 0; i < Tile::BYTES / (128 * 16); ++i) {
    const int byte = (i * 128 + thread) * 16;
    const float factor = factors[byte / 128 % Tile::DEPTH];
    Vector<T, 8> scaled = load_vector<8>(reinterpret_cast<const T*>(from + byte));
#pragma unroll
    for (int e = 0; e < 8; ++e) scaled[e] = static_cast<T>(static_cast<float>(scaled[e]) * factor);
    store_vector<8>(reinterpret_cast<T*>(to + byte), scaled);
  }
}

//: leave_state
// By a warpgroup: its accumulators in shared memory, for other blocks of the cluster.
template <int Blocks, int Count>
__device__ __forceinline__ void leave_state(float4* place, const float (&state)[Blocks][Count], int thread) {
#pragma unroll
  for (int i = 0; i < Blocks; ++i)
#pragma unroll
    for (int j = 0; j < Count; j += 4) {
      const float* const four = state[i] + j;
      place[(i * Count + j) / 4 * 128 + thread] = make_float4(four[0], four[1], four[2], four[3]);
    }
}

//: take_states
// By a warpgroup: the state behind the rows of all blocks of the cluster before this one, of what each of them has left
// at `place`. At `fall` each has left what remains of the state before its rows; 0 where nothing falls.
template <int Blocks, int Count>
__device__ __forceinline__ void take_states(unsigned place, unsigned fall, float (&state)[Blocks][Count], int rank,
                                            int thread) {
#pragma unroll
  for (int i = 0; i < Blocks; ++i)
#pragma unroll
    for (int j = 0; j < Count; ++j) state[i][j] = 0.0f;
  for (int before = 0; before < rank; ++before) {
    const float remains = fall == 0 ? 1.0f : ptx::load_cluster<float>(ptx::cluster_map(fall, before));
    const unsigned from = ptx::cluster_map(place, before);
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int j = 0; j < Count; j += 4) {
        const float4 four = ptx::load_cluster<float4>(from + ((i * Count + j) / 4 * 128 + thread) * 16);
        state[i][j] = state[i][j] * remains + four.x;
        state[i][j + 1] = state[i][j + 1] * remains + four.y;
        state[i][j + 2] = state[i][j + 2] * remains + four.z;
        state[i][j + 3] = state[i][j + 3] * remains + four.w;
      }
  }
}
