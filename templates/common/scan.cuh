// Scans along a row, of any `State` (row_state.cuh) whose `combine` is associative.

//: state_of_lane
// The state of lane number `lane` of each `Lanes` neighbouring lanes of a warp.
template <int Lanes, typename State>
__device__ __forceinline__ State state_of_lane(const State& state, int lane) {
  static_assert(sizeof(State) % 4 == 0, "a state is made of words");
  State other;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(State) / 4); ++i)
    reinterpret_cast<unsigned*>(&other)[i] =
        __shfl_sync(0xffffffff, reinterpret_cast<const unsigned*>(&state)[i], lane, Lanes);
  return other;
}

//: state_before
// The state of the lane `step` before this one, of each `Lanes` neighbouring lanes; its own where there is none.
template <int Lanes, typename State>
__device__ __forceinline__ State state_before(const State& state, int step) {
  static_assert(sizeof(State) % 4 == 0, "a state is made of words");
  State other;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(State) / 4); ++i)
    reinterpret_cast<unsigned*>(&other)[i] =
        __shfl_up_sync(0xffffffff, reinterpret_cast<const unsigned*>(&state)[i], step, Lanes);
  return other;
}

//: scan_lanes
// The states of each `Lanes` neighbouring lanes, combined up to each lane's own (Hillis and Steele, 1986).
template <int Lanes, typename State>
__device__ __forceinline__ void scan_lanes(State& state) {
#pragma unroll
  for (int step = 1; step < Lanes; step *= 2) {
    State before = state_before<Lanes>(state, step);
    before.combine(state);
    if (static_cast<int>(threadIdx.x % Lanes) >= step) state = before;
  }
}

//: RowScan
// A row's tiles one after the other, by Threads neighbouring threads of a block: all of them where they are more than a
// warp. Vectors of a warp lie together in a tile, those of number v of all its lanes before those of number v + 1.
template <typename State, int Threads>
struct RowScan {
  static constexpr int LANES = Threads < 32 ? Threads : 32;
  static constexpr int WARPS = Threads / LANES;
  State before;  // of the tiles so far
  int turn = 0;

  // In the row's next tile, makes of the states of this thread's vectors those of all that is before each of them.
  // Several warps have 2 * WARPS states in shared memory: those of two tiles in turn, so that a barrier a tile is
  // enough.
  template <int Vectors>
  __device__ __forceinline__ void next(State (&vectors)[Vectors], State* shared) {
    const int lane = threadIdx.x % LANES;
    State warp;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      State up_to = vectors[v];
      scan_lanes<LANES>(up_to);
      vectors[v] = warp;
      const State others = state_before<LANES>(up_to, 1);
      if (lane > 0) vectors[v].combine(others);
      warp.combine(state_of_lane<LANES>(up_to, LANES - 1));
    }
    State start = before;
    if constexpr (WARPS > 1) {
      State* const states = shared + turn * WARPS;
      turn ^= 1;
      const int number = threadIdx.x / 32;
      if (lane == 0) put_state(states + number, warp);
      __syncthreads();
      State up_to = lane < WARPS ? states[lane] : State();
      scan_lanes<WARPS>(up_to);
      const State others = state_of_lane<32>(up_to, number > 0 ? number - 1 : 0);
      if (number > 0) start.combine(others);
      before.combine(state_of_lane<32>(up_to, WARPS - 1));
    } else {
      before.combine(warp);
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      State all = start;
      all.combine(vectors[v]);
      vectors[v] = all;
    }
  }
};
