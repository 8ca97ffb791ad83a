// Both products of attention by wgmma, and how a consumer warpgroup goes over blocks of keys and values.

//: AttentionProducts
// Both products of a warpgroup's 64 rows, a block of keys and values at a time: scores by `mma_scores`, sums of values
// by `mma_values`. `weigh(scores, shrink, block)` makes weights of products, and returns whether the sums so far are to
// be multiplied by `shrink`.
template <typename Weights, typename TileK, typename TileV, int Count, typename Query, typename Pipeline,
          typename State, typename Order, typename Weigh, typename MmaScores, typename MmaValues>
struct AttentionProducts {
  float (&sums)[1][Count];
  const Query& query;
  unsigned tiles_k, tiles_v;
  const TmaPipeline<1>& pipeline_q;
  const Pipeline &pipeline_k, &pipeline_v;
  State &state_k, &state_v;
  Order& order;
  int thread;
  const Weigh& weigh;
  const MmaScores& mma_scores;
  const MmaValues& mma_values;
  float scores[1][TileK::EXTENT / 2], shrink[2];
  bool shrinks;
  Weights weights;

  __device__ __forceinline__ void multiply_keys() {
    pipeline_k.wait(state_k);
    order.wait();
    multiply_stage<TileK>(scores, query, tiles_k + state_k.stage * TileK::BYTES, false, mma_scores);
  }

  __device__ __forceinline__ void multiply_values() {
    pipeline_v.wait(state_v);
    multiply_stage<TileV>(sums, weights, tiles_v + state_v.stage * TileV::BYTES, true, mma_values);
  }

  // Waits until at most Pending products are under way, of which those of the scores are none.
  template <int Pending>
  __device__ __forceinline__ void wait_for_scores() {
    order.arrive(thread);
    ptx::wgmma_wait<Pending>();
    pipeline_k.release(state_k.stage, thread);
    state_k.advance();
    fence_sums(scores);
  }

  // No more scores are computed of these queries.
  __device__ __forceinline__ void release_queries() { pipeline_q.release(0, thread); }

  __device__ __forceinline__ void wait_for_values() {
    ptx::wgmma_wait<0>();
    pipeline_v.release(state_v.stage, thread);
    state_v.advance();
    fence_sums(sums);
  }

  __device__ __forceinline__ void exponentiate(int block) { shrinks = weigh(scores[0], shrink, block); }

  __device__ __forceinline__ void scale_sums() {
    if (shrinks) scale_rows(sums[0], shrink);
  }
};

//: UnscaledProducts
// AttentionProducts of weights without a normaliser: nothing that was summed up is multiplied.
template <typename Products>
struct UnscaledProducts : Products {
  static __device__ __forceinline__ void scale_sums() {}
};

//: SerialProducts
// Blocks from the last to the first, one product after the other.
struct SerialProducts {
  template <typename Products>
  static __device__ __forceinline__ void run(Products& products, const KeyBlocks& blocks) {
    for (int block = blocks.last - 1; block >= blocks.first; --block) {
      products.multiply_keys();
      products.template wait_for_scores<0>();
      products.exponentiate(block);
      products.scale_sums();
      products.weights.take(products.scores[0]);
      products.multiply_values();
      products.wait_for_values();
    }
    products.release_queries();
  }
};

//: OverlappedProducts
// Blocks from the last to the first; the values of one are added while the scores of the next are computed: Shah et
// al., "FlashAttention-3", 2024, pipelining within a warpgroup.
struct OverlappedProducts {
  template <typename Products>
  static __device__ __forceinline__ void run(Products& products, const KeyBlocks& blocks) {
    products.multiply_keys();
    products.template wait_for_scores<0>();
    products.exponentiate(blocks.last - 1);
    products.weights.take(products.scores[0]);
    for (int block = blocks.last - 2; block >= blocks.first; --block) {
      products.multiply_keys();
      products.multiply_values();
      products.template wait_for_scores<1>();
      products.exponentiate(block);
      products.wait_for_values();
      products.scale_sums();
      products.weights.take(products.scores[0]);
    }
    products.release_queries();
    products.multiply_values();
    products.wait_for_values();
  }
};

//: load_query_rows
// By the 128 threads of a warpgroup: 64 rows of a tile that is K-major, from its row `first` on, as TMA would leave
// them; they begin at `row_at(row)`. What lies beyond `rows` and `columns` becomes zero.
template <typename Operand, int Pack, typename T, typename RowAt>
__device__ __forceinline__ void load_query_rows(T* tile, int first, const RowAt& row_at, long long column_stride,
                                                int rows, int columns, int thread) {
  constexpr int VECTORS = Operand::DEPTH / Pack, WIDTH = Operand::WIDTH;
#pragma unroll
  for (int i = 0; i < VECTORS / 2; ++i) {
    const int row = first + (i * 128 + thread) / VECTORS, column = (i * 128 + thread) % VECTORS * Pack;
    const int unit = column % WIDTH / 8 ^ row % 8;
    T* const to = tile + column / WIDTH * (Operand::EXTENT * WIDTH) + row * WIDTH + unit * 8 + column % 8;
    store_vector<Pack>(to, load_vector<Pack>(row_at(row) + column * column_stride, row < rows ? columns - column : 0));
  }
}

//: KeptValues
// AttentionProducts of a head whose values end at row `kept`: what lies behind, NaN or not, is made 0 where it is in
// shared memory, by all Threads of the consumers together at Barrier. `values` is where the ring begins, `block` the
// one behind that whose values are next, `place` the number of a thread.
template <typename TileV, int Barrier, int Threads, typename Products>
struct KeptValues : Products {
  unsigned char* values;
  int kept, block, place;

  __device__ __forceinline__ void multiply_values() {
    --block;
    const int left = max(kept - block * TileV::DEPTH, 0);
    if (left < TileV::DEPTH) {
      this->pipeline_v.wait(this->state_v);
      unsigned char* const tile = values + this->state_v.stage * TileV::BYTES;
#pragma unroll
      for (int atom = 0; atom < TileV::ATOMS; ++atom)
        for (int byte = left * 128 + place * 16; byte < TileV::ATOM_BYTES; byte += Threads * 16)
          *reinterpret_cast<uint4*>(tile + atom * TileV::ATOM_BYTES + byte) = make_uint4(0, 0, 0, 0);
      ptx::fence_proxy_async();
      ptx::named_barrier_sync<Barrier, Threads>();
    }
    Products::multiply_values();
  }
};
