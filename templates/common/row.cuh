// Reductions along a row: by a thread, over the lanes of a warp, the warps of a block, the blocks of a cluster, of any
// `State` (row_state.cuh). All threads end up with the same bits, as every step is commutative.

//: largest
// The larger of two; NaN where either is.
__device__ __forceinline__ float largest(float a, float b) { return ptx::max_nan(a, b); }
__device__ __forceinline__ double largest(double a, double b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ int largest(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ long long largest(long long a, long long b) { return a > b ? a : b; }

//: smallest
// The smaller of two; NaN where either is.
__device__ __forceinline__ float smallest(float a, float b) { return ptx::min_nan(a, b); }
__device__ __forceinline__ double smallest(double a, double b) { return a < b || a != a ? a : b; }
__device__ __forceinline__ int smallest(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ long long smallest(long long a, long long b) { return a < b ? a : b; }

//: keep_first_largest
// Makes (value, at) the larger of it and (other, other_at): NaN is the largest, of equals the first. Where there is
// none yet, `value` is the least of T and `at` the largest Index.
template <typename T, typename Index>
__device__ __forceinline__ void keep_first_largest(T& value, Index& at, T other, Index other_at) {
  const bool nan = value != value, other_nan = other != other;
  const bool equal = other_nan ? nan : other == value;
  const bool larger = other_nan ? !nan : other > value;
  const bool takes = larger | (equal & (other_at < at));
  value = takes ? other : value;
  at = takes ? other_at : at;
}

//: keep_next_larger
// The same where `other` comes after all that was seen, in the row's order: it is kept if it is larger. What is nowhere
// larger than the least of T stays where `at` was at first.
template <typename T, typename Index>
__device__ __forceinline__ void keep_next_larger(T& value, Index& at, T other, Index other_at) {
  if (!(other <= value) && value == value) {
    value = other;
    at = other_at;
  }
}

//: reciprocal_parts
// 1 / x as the product of the two parts; the second, y, is a power of two near it, so that neither is too large or too
// small for a float.
__device__ __forceinline__ float2 reciprocal_parts(float x) {
  const int exponent = __float_as_int(x) >> 23 & 255;
  const float scale = __int_as_float((exponent < 253 ? 254 - exponent : 1) << 23);
  return {1.0f / (x * scale), scale};
}

//: exchange_state
// The state of the lane whose number differs by the bits of `mask`.
template <typename State>
__device__ __forceinline__ State exchange_state(const State& state, int mask) {
  static_assert(sizeof(State) % 4 == 0, "a state is made of words");
  State other;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(State) / 4); ++i)
    reinterpret_cast<unsigned*>(&other)[i] =
        __shfl_xor_sync(0xffffffff, reinterpret_cast<const unsigned*>(&state)[i], mask);
  return other;
}

//: sum_lanes
// The sum over each `Lanes` neighbouring lanes of a warp.
template <int Lanes, typename T>
__device__ __forceinline__ T sum_lanes(T value) {
#pragma unroll
  for (int mask = Lanes / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffff, value, mask);
  return value;
}

//: largest_lanes
// The largest of each `Lanes` neighbouring lanes of a warp; NaN where one is.
template <int Lanes, typename T>
__device__ __forceinline__ T largest_lanes(T value) {
#pragma unroll
  for (int mask = Lanes / 2; mask > 0; mask /= 2) value = largest(value, __shfl_xor_sync(0xffffffff, value, mask));
  return value;
}

//: smallest_lanes
// The smallest of each `Lanes` neighbouring lanes of a warp; NaN where one is.
template <int Lanes, typename T>
__device__ __forceinline__ T smallest_lanes(T value) {
#pragma unroll
  for (int mask = Lanes / 2; mask > 0; mask /= 2) value = smallest(value, __shfl_xor_sync(0xffffffff, value, mask));
  return value;
}

//: keep_first_largest_lanes
// Makes (value, at) the first largest of each `Lanes` neighbouring lanes of a warp.
template <int Lanes, typename T, typename Index>
__device__ __forceinline__ void keep_first_largest_lanes(T& value, Index& at) {
#pragma unroll
  for (int mask = Lanes / 2; mask > 0; mask /= 2) {
    const T other = __shfl_xor_sync(0xffffffff, value, mask);
    keep_first_largest(value, at, other, __shfl_xor_sync(0xffffffff, at, mask));
  }
}

//: put_state
// Writes all words of a state, also those between its members.
template <typename State>
__device__ __forceinline__ void put_state(State* to, const State& state) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(State) / 4); ++i)
    reinterpret_cast<unsigned*>(to)[i] = reinterpret_cast<const unsigned*>(&state)[i];
}

//: first_lane
// A state that the first lane of a warp reads for all: it alone has to say when the place is free again.
template <typename State>
__device__ __forceinline__ State first_lane(const State* from) {
  static_assert(sizeof(State) % 4 == 0, "a state is made of words");
  State state;
  if (threadIdx.x % 32 == 0) state = *from;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(State) / 4); ++i)
    reinterpret_cast<unsigned*>(&state)[i] = __shfl_sync(0xffffffff, reinterpret_cast<const unsigned*>(&state)[i], 0);
  return state;
}

//: send_state
// Writes a state to the same place in block `rank` of the cluster, where its bytes arrive on `barrier`; does not wait.
template <typename State>
__device__ __forceinline__ void send_state(State* to, const State& state, unsigned barrier, int rank) {
  static_assert(sizeof(State) % 4 == 0, "a state is made of words");
  const unsigned theirs = ptx::cluster_map(ptx::smem_address(to), rank), bell = ptx::cluster_map(barrier, rank);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(State) / 4); ++i)
    ptx::store_cluster_async(theirs + 4 * i, reinterpret_cast<const unsigned*>(&state)[i], bell);
}

//: reduce_block
// Combines the states of each `Warps` neighbouring warps of a block. `partial` has room for all warps of the block, and
// is free again after the block's next barrier.
template <int Warps, typename State>
__device__ __forceinline__ void reduce_block(State& state, State* partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  state.template combine_lanes<32>();
  if (lane == 0) partial[warp] = state;
  __syncthreads();
  state = partial[warp / Warps * Warps + lane % Warps];
  state.template combine_lanes<Warps>();
}

//: reduce_block_sequential
// Combines the states of all threads of a block for thread 0, through shared memory with room for all of them: in every
// step the lower half of the threads that are left takes the upper half's. Free again after the block's next barrier.
template <int Threads, typename State>
__device__ __forceinline__ void reduce_block_sequential(State& state, State* states) {
  states[threadIdx.x] = state;
  __syncthreads();
#pragma unroll
  for (int half = Threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      state.combine(states[threadIdx.x + half]);
      states[threadIdx.x] = state;
    }
    __syncthreads();
  }
}

//: reduce_block_interleaved
// The same, where in every step every other thread that is left takes its neighbour's.
template <int Threads, typename State>
__device__ __forceinline__ void reduce_block_interleaved(State& state, State* states) {
  states[threadIdx.x] = state;
  __syncthreads();
#pragma unroll
  for (int step = 1; step < Threads; step *= 2) {
    if (threadIdx.x % (2 * step) == 0) {
      state.combine(states[threadIdx.x + step]);
      states[threadIdx.x] = state;
    }
    __syncthreads();
  }
}

//: reduce_cluster
// Combines the states of all threads of a cluster of `Blocks` blocks of `Warps` warps. `partial` has room for all its
// warps, and is free again after the cluster's next barrier.
template <int Blocks, int Warps, typename State>
__device__ __forceinline__ void reduce_cluster(State& state, State* partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  state.template combine_lanes<32>();
  if (lane < Blocks) {
    const unsigned mine = ptx::smem_address(partial + ptx::cluster_rank() * Warps + warp);
    const unsigned theirs = ptx::cluster_map(mine, lane);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(State) / 4); ++i)
      ptx::store_cluster(theirs + 4 * i, reinterpret_cast<const unsigned*>(&state)[i]);
  }
  ptx::cluster_sync();
  constexpr int COUNT = Blocks * Warps;
  state = partial[lane % COUNT];
#pragma unroll
  for (int i = 32; i < COUNT; i += 32) state.combine(partial[i + lane]);
  state.template combine_lanes<(COUNT < 32 ? COUNT : 32)>();
}

//: load_anywhere
// Elements `column` to `column` + N of a row of `length`, which has them, at any address: from the aligned accesses
// that they lie across, and one by one only where the row begins or ends within those.
template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load_anywhere(const T* row, int column, int length) {
  Vector<T, N> v;
  if constexpr (N > 1 && Astride<T, N>::WORDS > 0) {
    const Astride<T, N> lies(row + column);
    if (lies.within(column, length)) {
      unsigned words[Astride<T, N>::ALL];
      lies.load(words);
      return lies.taken(words);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = row[column + i];
  return v;
}
