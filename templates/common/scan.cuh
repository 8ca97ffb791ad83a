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

//: scan_vectors
// Makes of the states of this thread's vectors in a tile those of what is before each of them in its warp, and finds
// what is in warps before, and what the tile comes to. The tile is that of Threads neighbouring threads: of a block's
// where they are more than a warp. Vectors of a warp lie together in it, those of number v of all its lanes before
// those of number v + 1. Several warps have WARPS states in shared memory.
template <int Threads, typename State, int Vectors>
__device__ __forceinline__ void scan_vectors(State (&vectors)[Vectors], State* shared, State& warps_before,
                                             State& tile) {
  constexpr int LANES = Threads < 32 ? Threads : 32, WARPS = Threads / LANES;
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
  warps_before = State();
  if constexpr (WARPS > 1) {
    const int number = threadIdx.x / 32;
    if (lane == 0) put_state(shared + number, warp);
    __syncthreads();
    State up_to = lane < WARPS ? shared[lane] : State();
    scan_lanes<WARPS>(up_to);
    const State others = state_of_lane<32>(up_to, number > 0 ? number - 1 : 0);
    if (number > 0) warps_before = others;
    tile = state_of_lane<32>(up_to, WARPS - 1);
  } else {
    tile = warp;
  }
}

//: add_before
// Adds what is before all of a thread's vectors to what is before each.
template <typename State, int Vectors>
__device__ __forceinline__ void add_before(State (&vectors)[Vectors], const State& start) {
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    State all = start;
    all.combine(vectors[v]);
    vectors[v] = all;
  }
}

//: RowScan
// A row's tiles one after the other, by Threads neighbouring threads of a block: all of them where they are more than a
// warp.
template <typename State, int Threads>
struct RowScan {
  static constexpr int LANES = Threads < 32 ? Threads : 32;
  static constexpr int WARPS = Threads / LANES;
  State before;  // of the tiles so far
  int turn = 0;

  // In the row's next tile, makes of the states of this thread's vectors those of all that is before each of them; see
  // scan_vectors. Several warps have 2 * WARPS states in shared memory: those of two tiles in turn, so that a barrier a
  // tile is enough.
  template <int Vectors>
  __device__ __forceinline__ void next(State (&vectors)[Vectors], State* shared) {
    State start = before, warps_before, tile;
    scan_vectors<Threads>(vectors, shared + turn * WARPS, warps_before, tile);
    start.combine(warps_before);
    before.combine(tile);
    turn ^= 1;
    add_before(vectors, start);
  }
};

//: SharedRow
// The tiles of a row that blocks share, all of them on the GPU at once: what is before each tile, in a fixed order. 32
// tiles are a group, 32 groups a section. Blocks leave what a tile comes to, what a group does, and what the row does
// up to a section's end; so that all that is before a tile is found by looking at up to 31 tiles, 31 groups and a
// section, which lie side by side. A decoupled look-back (Merrill and Garland, 2016) goes back over as many tiles as
// have not yet found what is before them, and so adds in the order of chance. A state is left word by word, each with a
// flag in the 8 bytes of one access, as NCCL's low-latency protocol has it: no fence, and no second access for a flag.
template <typename State>
struct SharedRow {
  static_assert(sizeof(State) % 4 == 0, "a state is made of words");
  static constexpr int GROUP = 32;
  static constexpr int WORDS = static_cast<int>(sizeof(State) / 4);
  using Word = volatile long long;  // a word of a state above 1, or 0
  Word *tiles, *groups, *sections;

  // Words of memory of a row of so many tiles, 0 before the launch. Who is last clears them.
  static __device__ __forceinline__ long long words(int tiles) {
    const int groups = (tiles + GROUP - 1) / GROUP;
    return (static_cast<long long>(tiles) + groups + (groups + GROUP - 1) / GROUP) * WORDS;
  }

  __device__ __forceinline__ SharedRow(long long* row, int count)
      : tiles(row), groups(tiles + count * WORDS), sections(groups + ((count - 1) / GROUP + 1) * WORDS) {}

  // By all lanes of a warp, as is what follows: leaves what tile number `tile` comes to.
  __device__ __forceinline__ void leave(int tile, const State& own) const { leave(tiles, tile, own); }

  // What is before a tile that has been left.
  __device__ __forceinline__ State before(int tile, const State& own) const {
    const int group = tile / GROUP, section = group / GROUP;
    // What is there already comes at once.
    Seen near(tiles, group * GROUP, tile % GROUP), middle(groups, section * GROUP, group % GROUP);
    Seen far(sections, section - 1, section > 0);
    const State in_group = near.combined();
    State up_to = in_group;
    up_to.combine(own);
    if (tile % GROUP == GROUP - 1) leave(groups, group, up_to);
    if (group == 0) return in_group;
    State all = far.combined();
    all.combine(middle.combined());
    if (tile % (GROUP * GROUP) == GROUP * GROUP - 1) {
      State section_end = all;
      section_end.combine(up_to);
      leave(sections, section, section_end);
    }
    all.combine(in_group);
    return all;
  }

 private:
  // The states of up to 32 neighbouring places, of each lane one.
  struct Seen {
    Word* place;
    bool wanted;
    long long words[WORDS];

    __device__ __forceinline__ Seen(Word* places, int first, int count)
        : place(places + (first + static_cast<int>(threadIdx.x % 32)) * WORDS),
          wanted(static_cast<int>(threadIdx.x % 32) < count) {
      look();
    }
    __device__ __forceinline__ void look() {
#pragma unroll
      for (int i = 0; i < WORDS; ++i) words[i] = wanted ? place[i] : 1;
    }
    __device__ __forceinline__ bool is_there() const {
      long long flags = 1;
#pragma unroll
      for (int i = 0; i < WORDS; ++i) flags &= words[i];
      return flags != 0;
    }
    // Waits for all of them, and combines them in their order.
    __device__ __forceinline__ State combined() {
      while (!is_there()) look();
      State state;
      if (wanted) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) reinterpret_cast<unsigned*>(&state)[i] = static_cast<unsigned>(words[i] >> 32);
      }
      scan_lanes<32>(state);
      return state_of_lane<32>(state, 31);
    }
  };

  static __device__ __forceinline__ void leave(Word* places, int at, const State& state) {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < WORDS; ++i)
      places[at * WORDS + i] = static_cast<long long>(reinterpret_cast<const unsigned*>(&state)[i]) << 32 | 1;
  }
};
