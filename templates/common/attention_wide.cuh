// Attention of heads too wide for a warpgroup to have both products: one warpgroup makes the scores of a block's 64
// rows and their weights; these pass through shared memory to the warpgroups that add up values, each its own columns.

//: SharedWeights
// A ring of Stages of weights, rounded to T, of 64 rows and Columns of a step each, which lie in shared memory as the A
// of the values' products; with them what the sums so far of each row are to be multiplied by. A warpgroup writes them,
// Readers warpgroups read.
template <typename T, int Columns, int Stages, int Readers>
struct SharedWeights {
  using Tile = OperandTile<T, true, 64, (Columns + 63) / 64 * 64, 128>;
  using State = PipelineState<Stages>;
  static constexpr int FACTORS = 64 * sizeof(float);
  static constexpr int BYTES = Stages * (Tile::BYTES + FACTORS) + TmaPipeline<Stages>::BYTES;
  unsigned tiles;
  float* factors;
  TmaPipeline<Stages> pipeline;

  // From byte `offset` of shared memory on, a multiple of 1024.
  __device__ __forceinline__ SharedWeights(unsigned char* shared, unsigned offset)
      : tiles(ptx::smem_address(shared) + offset),
        factors(reinterpret_cast<float*>(shared + offset + Stages * Tile::BYTES)),
        pipeline(tiles + Stages * (Tile::BYTES + FACTORS)) {}

  // Each thread writes and reads for itself.
  __device__ __forceinline__ void init() const { pipeline.init(128, Readers * 128); }

  // By the writer, once all have read what the stage had.
  __device__ __forceinline__ void write(const State& state, const float (&weights)[Columns / 2],
                                        const float (&scale)[2], int warp, int lane) const {
    RegisterWeights<T, Columns, 16> rounded;
    rounded.take(weights);
    write(state, scale, warp, lane);
#pragma unroll
    for (int step = 0; step < Columns / 16; ++step)
      RowMajorStage<64>::store(tiles + state.stage * Tile::BYTES + step / 4 * Tile::ATOM_BYTES, step % 4, warp, lane,
                               rounded.fragments[step]);
    ptx::fence_proxy_async();
  }

  // Without weights: what follows the last of them.
  __device__ __forceinline__ void write(const State& state, const float (&scale)[2], int warp, int lane) const {
    pipeline.acquire(state);
    if (lane % 4 == 0) {
      factors[state.stage * 64 + WgmmaRows::row(warp, lane, 0)] = scale[0];
      factors[state.stage * 64 + WgmmaRows::row(warp, lane, 1)] = scale[1];
    }
  }

  // What has been written may be read.
  __device__ __forceinline__ void hand_over(State& state, int lane) const {
    ptx::mbarrier_arrive(pipeline.full + state.stage * 8);
    state.advance();
  }

  // By a reader, once the stage has been handed over: multiplies the sums of its rows.
  template <int Count>
  __device__ __forceinline__ void scale(const State& state, float (&sums)[1][Count], int warp, int lane) const {
    pipeline.wait(state);
    const float scale[2] = {factors[state.stage * 64 + WgmmaRows::row(warp, lane, 0)],
                            factors[state.stage * 64 + WgmmaRows::row(warp, lane, 1)]};
    // Mostly no warp's largest score was larger than all before it.
    if (__any_sync(0xffffffff, scale[0] != 1.0f || scale[1] != 1.0f)) scale_rows(sums[0], scale);
  }

  // By a reader, which needs the stage no more.
  __device__ __forceinline__ void release(State& state, int lane) const {
    ptx::mbarrier_arrive(pipeline.empty + state.stage * 8);
    state.advance();
  }
};

//: multiply_parts
// Adds up the products of Parts tiles of B, one after another in a ring, with as many parts of A along K: a(block,
// step) of all steps. A tile is released once the products of the next one are issued and its own are done.
template <typename TileB, int Parts, typename Sums, typename A, typename Pipeline, typename State, typename Mma>
__device__ __forceinline__ void multiply_parts(Sums& sums, const A& a, unsigned tiles_b, const Pipeline& pipeline,
                                               State& state, bool add, int thread, const Mma& mma) {
  int reading = state.stage;
  for (int part = 0; part < Parts; ++part) {
    const auto of_part = [&](int block, int step) { return a(block, part * TileB::STEPS + step); };
    pipeline.wait(state);
    multiply_stage<TileB>(sums, of_part, tiles_b + state.stage * TileB::BYTES, add || part > 0, mma);
    ptx::wgmma_wait<1>();
    if (part > 0) pipeline.release(reading, thread);
    reading = state.stage;
    state.advance();
  }
  ptx::wgmma_wait<0>();
  pipeline.release(reading, thread);
  fence_sums(sums);
}

//: load_operand_atoms
// As load_operand, of a tile that Blocks of the cluster get, these `sharers`: this one copies every Blocks-th column of
// swizzle atoms, to all of them.
template <typename Tile, int Blocks, typename... Batch>
__device__ __forceinline__ void load_operand_atoms(unsigned tile, const ptx::TensorMap& map, unsigned full,
                                                   Sharers sharers, int outer, int k, Batch... batch) {
  static_assert(Tile::ATOMS % Blocks == 0, "blocks copy as much of a tile");
#pragma unroll
  for (int i = 0; i < Tile::ATOMS / Blocks; ++i) {
    const int atom = i * Blocks + sharers.place;
    const int inner = (Tile::K_MAJOR ? k : outer) + atom * Tile::WIDTH;
    const int at[] = {inner, Tile::K_MAJOR ? outer : k, batch...};
    ptx::tma_load_multicast(tile + atom * Tile::ATOM_BYTES, map, full, sharers.blocks, at);
  }
}
