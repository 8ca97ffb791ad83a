// The main loop of a consumer warpgroup, and how the producer fills a stage.

//: load_operand
// By one thread: copies a tile of an operand to shared memory, a column of swizzle atoms at a time. `outer` is its
// first row or column, `k` its first element along K; `batch` are the coordinates of the tensor map's other axes.
template <typename Tile, typename... Batch>
__device__ __forceinline__ void load_operand(unsigned tile, const ptx::TensorMap& map, unsigned full, int outer, int k,
                                             Batch... batch) {
#pragma unroll
  for (int atom = 0; atom < Tile::ATOMS; ++atom) {
    const int inner = (Tile::K_MAJOR ? k : outer) + atom * Tile::WIDTH;
    const int at[] = {inner, Tile::K_MAJOR ? outer : k, batch...};
    ptx::tma_load(tile + atom * Tile::ATOM_BYTES, map, full, at);
  }
}

//: load_operand_share
// As load_operand, of this block's share of a tile that Blocks of the cluster get, these `sharers`.
template <typename Tile, int Blocks, typename... Batch>
__device__ __forceinline__ void load_operand_share(unsigned tile, const ptx::TensorMap& map, unsigned full,
                                                   Sharers sharers, int outer, int k, Batch... batch) {
  const int share = sharers.place * ((Tile::K_MAJOR ? Tile::EXTENT : Tile::DEPTH) / Blocks);
#pragma unroll
  for (int atom = 0; atom < Tile::ATOMS; ++atom) {
    const int inner = (Tile::K_MAJOR ? k : outer) + atom * Tile::WIDTH;
    const int at[] = {inner, (Tile::K_MAJOR ? outer : k) + share, batch...};
    ptx::tma_load_multicast(tile + atom * Tile::ATOM_BYTES + sharers.place * (Tile::ATOM_BYTES / Blocks), map, full,
                            sharers.blocks, at);
  }
}

//: WgmmaRows
// The rows, of an instruction's 64, of whose results a lane has two pairs in every eight columns.
struct WgmmaRows {
  static __device__ __forceinline__ int row(int warp, int lane, int half) { return warp * 16 + half * 8 + lane / 4; }
};

//: BankFreeRows
// As WgmmaRows, where warps take their rows so that lanes which read A for registers touch all banks: four rows from
// each of four units of 16 bytes.
struct BankFreeRows {
  static __device__ __forceinline__ int row(int warp, int lane, int half) {
    return warp / 2 * 32 + warp % 2 * 8 + lane / 16 * 16 + half * 4 + lane / 4 % 4;
  }
};

//: SharedOperand
// A in shared memory, from row `first` of the tiles of which stage 0 lies at shared address `tiles`.
template <typename Tile>
struct SharedOperand {
  unsigned tiles;

  struct Stage {
    unsigned long long descriptor;
    __device__ __forceinline__ unsigned long long operator()(int block, int step) const {
      return descriptor + Tile::offset(block * 64, step) / 16;
    }
  };

  __device__ __forceinline__ SharedOperand(unsigned tiles, int first) : tiles(tiles + Tile::offset(first, 0)) {}

  __device__ __forceinline__ Stage at(int stage) const { return {Tile::descriptor(tiles + stage * Tile::BYTES)}; }
};

//: RegisterOperand
// A from registers: it runs across K, which wgmma does not read from shared memory for elements of its size.
template <typename Tile, typename Rows, int Blocks>
struct RegisterOperand {
  const unsigned char* tiles;
  int first, warp, lane;

  struct Stage {
    unsigned fragments[Tile::STEPS][Blocks][4];
    __device__ __forceinline__ const unsigned (&operator()(int block, int step) const)[4] {
      return fragments[step][block];
    }
  };

  __device__ __forceinline__ Stage at(int stage) const {
    Stage found;
#pragma unroll
    for (int step = 0; step < Tile::STEPS; ++step)
#pragma unroll
      for (int i = 0; i < Blocks; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int row = first + i * 64 + Rows::row(warp, lane, r % 2);
          const int k = step * Tile::STEP + lane % 4 + r / 2 * 4;
          found.fragments[step][i][r] =
              *reinterpret_cast<const unsigned*>(tiles + stage * Tile::BYTES + Tile::address(row, k));
        }
    return found;
  }
};

//: multiply_stage
// Issues the products of one stage: mma(sums, a, b, add) for every instruction. Without `add` they replace the sums.
template <typename TileB, typename Sums, typename A, typename Mma>
__device__ __forceinline__ void multiply_stage(Sums& sums, const A& a, unsigned tile_b, bool add, const Mma& mma) {
  const unsigned long long b = TileB::descriptor(tile_b);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < TileB::STEPS; ++step)
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(sums) / sizeof(sums[0])); ++i)
      mma(sums[i], a(i, step), b + TileB::offset(0, step) / 16, add || step > 0);
  ptx::wgmma_commit();
}

//: wgmma_mainloop
// Adds up the products of tiles k_first to k_last of K. Those of a stage are waited for, and the stage released, while
// those of the next are under way; the last stage is left to the caller, that is returned.
template <typename TileB, typename Sums, typename A, typename Pipeline, typename State, typename Mma>
__device__ __forceinline__ int wgmma_mainloop(Sums& sums, const A& operand_a, unsigned tiles_b,
                                              const Pipeline& pipeline, State& state, int k_first, int k_last,
                                              int thread, const Mma& mma) {
  int reading = state.stage;
  for (int k = k_first; k < k_last; ++k) {
    pipeline.wait(state);
    multiply_stage<TileB>(sums, operand_a.at(state.stage), tiles_b + state.stage * TileB::BYTES, k > k_first, mma);
    ptx::wgmma_wait<1>();
    if (k > k_first) pipeline.release(reading, thread);
    reading = state.stage;
    state.advance();
  }
  return reading;
}

//: wgmma_mainloop_by_warps
// As wgmma_mainloop, for stages that the warps themselves read as well, each for itself: finish(stage, sums) follows
// the products of a stage, and with Replace these are not added to those before.
template <typename TileB, bool Replace, typename Sums, typename A, typename Pipeline, typename State, typename Mma,
          typename Finish>
__device__ __forceinline__ void wgmma_mainloop_by_warps(Sums& sums, const A& operand_a, unsigned tiles_b,
                                                        const Pipeline& pipeline, State& state, int k_first, int k_last,
                                                        int lane, const Mma& mma, const Finish& finish) {
  for (int k = k_first; k < k_last; ++k) {
    pipeline.wait(state);
    multiply_stage<TileB>(sums, operand_a.at(state.stage), tiles_b + state.stage * TileB::BYTES,
                          !Replace && k > k_first, mma);
    ptx::wgmma_wait<0>();
    finish(state.stage, sums);
    __syncwarp();
    pipeline.release(state.stage, lane);
    state.advance();
  }
}

//: fence_sums
// The compiler moves no use of the sums past this point, where no product of them is under way.
template <int Blocks, int Count, typename T>
__device__ __forceinline__ void fence_sums(T (&sums)[Blocks][Count]) {
#pragma unroll
  for (int i = 0; i < Blocks; ++i) ptx::warpgroup_fence_operand(sums[i]);
}

//: fill_sums
// Sets every sum to `value`.
template <int Blocks, int Count, typename T>
__device__ __forceinline__ void fill_sums(T (&sums)[Blocks][Count], T value) {
#pragma unroll
  for (int i = 0; i < Blocks; ++i)
#pragma unroll
    for (int j = 0; j < Count; ++j) sums[i][j] = value;
}
