// What follows the main loop of a consumer warpgroup: results leave for memory.
// `results[i]` are those of 64 rows as wgmma leaves them; Rows says which rows these are. The epilogue is given them as
// Value. What it reads beside them may be asked for ahead, by `read(Int<COUNT>(), m, n)` for COUNT neighbours along n.

//: RowMajorStage
// A stage of 64 rows of Width columns of 16 bits, swizzled over a row as its tensor map is.
template <int Width>
struct RowMajorStage {
  static constexpr bool COLUMN_MAJOR = false;
  // Chunk j of a warp's columns, by all of its lanes.
  template <int Words>
  static __device__ __forceinline__ void store(unsigned stage, int j, int warp, int lane,
                                               const unsigned (&packed)[Words]) {
    const int row = warp * 16 + lane % 16, unit = Words == 4 ? j * 2 + lane / 16 : j;
    constexpr int UNITS = Width / 8;  // of 16 bytes in a row
    ptx::stmatrix(stage + row * (Width * 2) + (unit ^ row / (8 / UNITS) % UNITS) * 16, packed);
  }
  // The coordinates of its first element in the tensor map.
  static __device__ __forceinline__ int2 first(int m, int n) { return {n, m}; }
};

//: ColumnMajorStage
// The same, of Width columns of 64 rows.
template <int Width>
struct ColumnMajorStage {
  static constexpr bool COLUMN_MAJOR = true;
  template <int Words>
  static __device__ __forceinline__ void store(unsigned stage, int j, int warp, int lane,
                                               const unsigned (&packed)[Words]) {
    const int row = j * Words * 4 + (Words == 4 ? lane / 16 * 8 : 0) + lane % 8, unit = warp * 2 + lane / 8 % 2;
    ptx::stmatrix_trans(stage + row * 128 + (unit ^ row % 8) * 16, packed);
  }
  static __device__ __forceinline__ int2 first(int m, int n) { return {m, n}; }
};

//: TmaStore
// Results leave by TMA, 64 rows by Width columns at a time, through a ring of Stages in shared memory, so that stores
// overlap the next tile's products. `evaluate(pair, operands, m, n)` is the epilogue of two neighbours along n, 16 bits
// each. Batch: the tile's coordinates on the further axes of the tensor map.
template <typename Value, int Columns, int Width, int Stages, template <int> class Layout, int Consumers, typename Rows,
          int... Batch>
struct TmaStore {
  static constexpr int STAGE_BYTES = 64 * Width * 2, BYTES = Consumers * Stages * STAGE_BYTES;
  static constexpr int CHUNK = Width % 16 ? 8 : 16;  // columns of one stmatrix
  unsigned stages;
  int consumer, thread;
  const ptx::TensorMap& map;
  int next = 0;

  __device__ __forceinline__ TmaStore(unsigned stages, int consumer, int thread, const ptx::TensorMap& map)
      : stages(stages + consumer * (Stages * STAGE_BYTES)), consumer(consumer), thread(thread), map(map) {}

  template <typename T, int Blocks, int Count, typename Read, typename Evaluate, typename Tile>
  __device__ __forceinline__ void operator()(const T (&results)[Blocks][Count], const Read& read,
                                             const Evaluate& evaluate, const Tile& tile, int first_row) {
    constexpr int CHUNKS = Columns / CHUNK, PAIRS = CHUNK / 4;  // chunks of 64 rows; a lane's pairs of a chunk
    // Chunks that are read ahead, in some 16 registers.
    constexpr int AHEAD = sizeof(read(Int<2>(), 0, 0)) > 4 ? 2 : 4;
    const int m0 = tile.m0 + first_row, n0 = tile.n0, warp = thread / 32, lane = thread % 32;
    const auto row = [&](int chunk, int r) { return m0 + chunk / CHUNKS * 64 + Rows::row(warp, lane, r % 2); };
    const auto column = [&](int chunk, int r) { return chunk % CHUNKS * CHUNK + r / 2 * 8; };
    decltype(read(Int<2>(), 0, 0)) operands[AHEAD][PAIRS];
    int n_read = n0;
    const auto read_chunk = [&](int chunk) {
      if (chunk >= Blocks * CHUNKS) return;
      // Operands stored by rows are read element by element here. The compiler would keep all their addresses for the
      // next 64 rows, in registers that are not there: after the shuffle it does not know that the columns are the
      // same.
      if (Layout<Width>::COLUMN_MAJOR && sizeof(operands[0][0]) > 1 && chunk > 0 && chunk % CHUNKS == 0)
        n_read = __shfl_sync(0xffffffff, n_read, lane);
#pragma unroll
      for (int r = 0; r < PAIRS; ++r)
        operands[chunk % AHEAD][r] = read(Int<2>(), row(chunk, r), n_read + column(chunk, r) + lane % 4 * 2);
    };
#pragma unroll
    for (int chunk = 0; chunk < AHEAD; ++chunk) read_chunk(chunk);
#pragma unroll
    for (int first = 0; first < Blocks * CHUNKS; first += Width / CHUNK) {
      const unsigned stage = stages + next * STAGE_BYTES;
      next = next + 1 == Stages ? 0 : next + 1;
      if (thread == 0) ptx::tma_store_wait<Stages - 1>();
      warpgroup_sync<Consumers>(consumer);
#pragma unroll
      for (int chunk = first; chunk < first + Width / CHUNK; ++chunk) {
        unsigned packed[PAIRS];
#pragma unroll
        for (int r = 0; r < PAIRS; ++r) {
          const T* const of_row = &results[chunk / CHUNKS][column(chunk, r) / 2 + r % 2 * 2];
          const Value pair[2] = {of_row[0], of_row[1]};
          const int n = n0 + column(chunk, r) + lane % 4 * 2;
          packed[r] = evaluate(pair, operands[chunk % AHEAD][r], row(chunk, r), n).access[0];
        }
        read_chunk(chunk + AHEAD);
        Layout<Width>::store(stage, chunk - first, warp, lane, packed);
      }
      ptx::fence_proxy_async();
      warpgroup_sync<Consumers>(consumer);
      if (thread == 0) {
        const int2 at_first = Layout<Width>::first(m0 + first / CHUNKS * 64, n0 + first % CHUNKS * CHUNK);
        const int at[] = {at_first.x, at_first.y, tile.batch[Batch]...};
        ptx::tma_store(map, stage, at);
        ptx::tma_store_commit();
      }
    }
  }

  // Of an epilogue that reads nothing: `evaluate(pair, m, n)`.
  template <typename T, int Blocks, int Count, typename Evaluate, typename Tile>
  __device__ __forceinline__ void operator()(const T (&results)[Blocks][Count], const Evaluate& evaluate,
                                             const Tile& tile, int first_row) {
    const auto nothing = [](auto, int, int) { return Int<0>(); };
    (*this)(
        results, nothing, [&](const auto& pair, Int<0>, int m, int n) { return evaluate(pair, m, n); }, tile,
        first_row);
  }

  // The block may end: nothing reads its shared memory any more.
  __device__ __forceinline__ void drain() const {
    if (thread == 0) ptx::tma_store_wait<0>();
  }
};

//: SharedStore
// Results pass through shared memory, 64 rows by Width columns at a time with rows Width + Padding apart, so that
// neighbouring threads finish neighbouring elements: along m where Transposed. `finish(values, m, n)` is the epilogue
// with the store.
template <typename Value, int Columns, int Width, int Padding, bool Transposed, int Consumers, typename Rows>
struct SharedStore {
  static constexpr int PITCH = Width + Padding, BYTES = Consumers * 64 * PITCH * 4;
  float* stage;
  int consumer, thread;

  __device__ __forceinline__ SharedStore(unsigned char* stages, int consumer, int thread)
      : stage(reinterpret_cast<float*>(stages) + consumer * (64 * PITCH)), consumer(consumer), thread(thread) {}

  template <typename T, int Blocks, int Count, typename Finish, typename Tile>
  __device__ __forceinline__ void operator()(const T (&results)[Blocks][Count], const Finish& finish, const Tile& tile,
                                             int first_row) const {
    const int m0 = tile.m0 + first_row, n0 = tile.n0, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int s = 0; s < Columns / Width; ++s) {
        warpgroup_sync<Consumers>(consumer);
#pragma unroll
        for (int j = 0; j < Width / 8; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int column = s * Width + j * 8;
            float* const to = stage + Rows::row(warp, lane, h) * PITCH + j * 8 + lane % 4 * 2;
            to[0] = results[i][column / 2 + h * 2];
            to[1] = results[i][column / 2 + h * 2 + 1];
          }
        warpgroup_sync<Consumers>(consumer);
#pragma unroll 4
        for (int element = thread; element < 64 * Width; element += 128) {
          const int row = Transposed ? element % 64 : element / Width;
          const int column = Transposed ? element / 64 : element % Width;
          const Value values[1] = {stage[row * PITCH + column]};
          finish(values, m0 + i * 64 + row, n0 + s * Width + column);
        }
      }
  }

  __device__ __forceinline__ void drain() const {}
};

//: SharedVectorStore
// The same of rows along n that are aligned: a thread finishes Together neighbours, `finish(values, operands, m, n)`,
// and has read their operands while the stage before was finished.
template <typename Value, int Columns, int Width, int Together, int Consumers, typename Rows>
struct SharedVectorStore {
  static_assert(Together % 4 == 0 && Width % Together == 0, "a thread reads whole vectors of its stage");
  static constexpr int PITCH = Width + 8, BYTES = Consumers * 64 * PITCH * 4;
  static constexpr int ACROSS = Columns / Width;                               // stages side by side
  static constexpr int VECTORS = 64 * Width / Together, EACH = VECTORS / 128;  // of a stage; a thread's
  float* stage;
  int consumer, thread;

  __device__ __forceinline__ SharedVectorStore(unsigned char* stages, int consumer, int thread)
      : stage(reinterpret_cast<float*>(stages) + consumer * (64 * PITCH)), consumer(consumer), thread(thread) {}

  // Of a stage the place of this thread's vector `i`.
  __device__ __forceinline__ int row(int i) const { return (i * 128 + thread) * Together / Width; }
  __device__ __forceinline__ int column(int i) const { return (i * 128 + thread) * Together % Width; }

  template <typename T, int Blocks, int Count, typename Read, typename Finish, typename Tile>
  __device__ __forceinline__ void operator()(const T (&results)[Blocks][Count], const Read& read, const Finish& finish,
                                             const Tile& tile, int first_row) const {
    const int warp = thread / 32, lane = thread % 32;
    const auto m = [&](int step, int i) { return tile.m0 + first_row + step / ACROSS * 64 + row(i); };
    const auto n = [&](int step, int i) { return tile.n0 + step % ACROSS * Width + column(i); };
    decltype(read(Int<Together>(), 0, 0)) operands[2][EACH];
    const auto read_stage = [&](int step) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) operands[step % 2][i] = read(Int<Together>(), m(step, i), n(step, i));
    };
    read_stage(0);
    unrolled<Blocks * ACROSS>([&](auto each) {
      constexpr int step = decltype(each)::value;
      if (step + 1 < Blocks * ACROSS) read_stage(step + 1);
      warpgroup_sync<Consumers>(consumer);
#pragma unroll
      for (int j = 0; j < Width / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const T* const pair = &results[step / ACROSS][(step % ACROSS * Width + j * 8) / 2 + h * 2];
          float* const to = stage + Rows::row(warp, lane, h) * PITCH + j * 8 + lane % 4 * 2;
          *reinterpret_cast<float2*>(to) = make_float2(pair[0], pair[1]);
        }
      warpgroup_sync<Consumers>(consumer);
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        Value values[Together];
#pragma unroll
        for (int t = 0; t < Together; t += 4) {
          const float4 four = *reinterpret_cast<const float4*>(stage + row(i) * PITCH + column(i) + t);
          values[t] = four.x;
          values[t + 1] = four.y;
          values[t + 2] = four.z;
          values[t + 3] = four.w;
        }
        finish(values, operands[step % 2][i], m(step, i), n(step, i));
      }
    });
  }

  __device__ __forceinline__ void drain() const {}
};

//: DirectStore
// Every lane finishes its own results, two neighbours along n at a time.
template <typename Value, typename Rows>
struct DirectStore {
  static constexpr int BYTES = 0;
  int thread;

  template <typename T, int Blocks, int Count, typename Finish, typename Tile>
  __device__ __forceinline__ void operator()(const T (&results)[Blocks][Count], const Finish& finish, const Tile& tile,
                                             int first_row) const {
    const int m0 = tile.m0 + first_row, n0 = tile.n0, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
#pragma unroll
      for (int j = 0; j < Count / 4; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Value values[2] = {results[i][j * 4 + h * 2], results[i][j * 4 + h * 2 + 1]};
          finish(values, m0 + i * 64 + Rows::row(warp, lane, h), n0 + j * 8 + lane % 4 * 2);
        }
  }

  __device__ __forceinline__ void drain() const {}
};
