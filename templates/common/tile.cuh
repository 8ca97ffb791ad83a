// Tiles of matrices in shared memory, the copies that fill them and the order in which blocks take output tiles.

//: Tile
// ROWS rows of COLUMNS elements. `Xor` permutes the 16-byte units of a row so that eight rows read at one column touch
// all banks; otherwise `Padding` units stand between the rows for the same end.
template <typename T, int Rows, int Columns, bool Xor, int Padding>
struct Tile {
  using Element = T;
  static constexpr int ROWS = Rows;
  static constexpr int COLUMNS = Columns;
  static constexpr int UNIT = 16 / sizeof(T);
  static constexpr int UNITS = Columns / UNIT;
  static constexpr int PITCH = Columns + (Xor ? 0 : Padding * UNIT);
  static constexpr int BYTES = Rows * PITCH * sizeof(T);

  // Where element (row, column) lies, in elements from the tile's start.
  static __device__ __forceinline__ int offset(int row, int column) {
    if constexpr (Xor) {
      const int phase = UNITS % 8 == 0 ? row % 8 : UNITS == 4 ? row / 2 % 4 : UNITS == 2 ? row / 4 % 2 : 0;
      return row * PITCH + ((column / UNIT) ^ phase) * UNIT + column % UNIT;
    } else {
      return row * PITCH + column;
    }
  }
};

//: Int
// A number as the argument of a generic lambda.
template <int Value>
struct Int {
  static constexpr int value = Value;
};

//: unrolled
// f(Int<0>()), f(Int<1>()), ... f(Int<Count - 1>()): a copy of f each, however long they are together. `#pragma unroll`
// leaves a long loop as it is, and registers that it indexes then lie in local memory.
template <int Count, int First = 0, typename F>
__device__ __forceinline__ void unrolled(const F& f) {
  if constexpr (First < Count) {
    f(Int<First>());
    unrolled<Count, First + 1>(f);
  }
}

//: Bool
// A constant as the argument of a generic lambda.
template <bool Value>
struct Bool {
  static constexpr bool value = Value;
};

//: TileShare
// How Threads threads share a tile of Rows rows, Pack elements at a time. Where it works out (STRAIGHT) a thread stays
// in its column and moves down the rows, so that one address serves all its accesses.
template <int Rows, int Columns, int Threads, int Pack>
struct TileShare {
  static constexpr int VECTORS = Columns / Pack;
  static constexpr int COUNT = Rows * VECTORS;
  static constexpr int SHARE = (COUNT + Threads - 1) / Threads;
  static constexpr bool STRAIGHT = Threads % VECTORS == 0;

  static __device__ __forceinline__ bool mine(int i) {
    return COUNT % Threads == 0 || threadIdx.x + i * Threads < COUNT;
  }
  static __device__ __forceinline__ int row(int i) {
    return STRAIGHT ? threadIdx.x / VECTORS + i * (Threads / VECTORS) : (threadIdx.x + i * Threads) / VECTORS;
  }
  static __device__ __forceinline__ int column(int i) {
    return (STRAIGHT ? threadIdx.x : threadIdx.x + i * Threads) % VECTORS * Pack;
  }
  // Where this thread's first access lies, from the tile's start in global memory.
  static __device__ __forceinline__ long long start(long long row_stride, long long column_stride) {
    return row(0) * row_stride + column(0) * column_stride;
  }
  // Where access i lies, from the first.
  static __device__ __forceinline__ long long offset(int i, long long row_stride, long long column_stride) {
    if constexpr (STRAIGHT) return i * (Threads / VECTORS * row_stride);
    return (row(i) - row(0)) * row_stride + (column(i) - column(0)) * column_stride;
  }
};

//: copy_pack
// Copies `valid` of Pack elements to shared memory, zeros in the place of the others. Copies of 4 bytes and more are
// asynchronous.
template <int Pack, typename T>
__device__ __forceinline__ void copy_pack(T* to, const T* from, long long column_stride, int valid) {
  constexpr int BYTES = Pack * sizeof(T);
  if constexpr (BYTES >= 4) {
    ptx::cp_async<BYTES>(ptx::smem_address(to), from, valid * static_cast<int>(sizeof(T)));
  } else {
#pragma unroll
    for (int e = 0; e < Pack; ++e) to[e] = e < valid ? from[e * column_stride] : T();
  }
}

//: copy_tile
// All threads of a block copy a tile from global to shared memory; `first` is where this thread's first access lies.
// What lies beyond `rows` and `columns` becomes zero; a Whole tile has nothing beyond. Copies of 4 bytes and more are
// asynchronous: commit and wait. The accesses are spread over Slots calls, of which this is number `slot`; Before of
// Total accesses belong to other tiles.
template <typename Tile, int Threads, int Pack, bool Whole, int Before, int Total, int Slots, typename T>
__device__ __forceinline__ void copy_tile(T* tile, const T* first, long long row_stride, long long column_stride,
                                          int rows, int columns, int slot) {
  using Share = TileShare<Tile::ROWS, Tile::COLUMNS, Threads, Pack>;
  constexpr int BYTES = Pack * sizeof(T);
#pragma unroll
  for (int i = 0; i < Share::SHARE; ++i) {
    if ((Before + i) * Slots / Total == slot && Share::mine(i)) {
      const int row = Share::row(i);
      const int column = Share::column(i);
      const T* const from = first + Share::offset(i, row_stride, column_stride);
      T* const to = tile + Tile::offset(row, column);
      if constexpr (Whole && BYTES >= 4) {
        ptx::cp_async<BYTES>(ptx::smem_address(to), from);
      } else {
        copy_pack<Pack>(to, from, column_stride, Whole ? Pack : row < rows ? max(0, min(Pack, columns - column)) : 0);
      }
    }
  }
}

//: copy_tile_at_once
// As copy_tile, of a tile that may reach beyond the end, in one call.
template <typename Tile, int Threads, int Pack, typename T>
__device__ __forceinline__ void copy_tile_at_once(T* tile, const T* first, long long row_stride,
                                                  long long column_stride, int rows, int columns) {
  constexpr int SHARE = TileShare<Tile::ROWS, Tile::COLUMNS, Threads, Pack>::SHARE;
  copy_tile<Tile, Threads, Pack, false, 0, SHARE, 1>(tile, first, row_stride, column_stride, rows, columns, 0);
}

//: copy_tile_in_turn
// As copy_tile_at_once, a few accesses after one another: the addresses of all those of a large tile would take too
// many registers.
template <typename Tile, int Threads, int Pack, typename T>
__device__ __forceinline__ void copy_tile_in_turn(T* tile, const T* first, long long row_stride,
                                                  long long column_stride, int rows, int columns) {
  using Share = TileShare<Tile::ROWS, Tile::COLUMNS, Threads, Pack>;
#pragma unroll 4
  for (int i = 0; i < Share::SHARE; ++i) {
    const int row = Share::row(i), column = Share::column(i);
    const int valid = row < rows ? max(0, min(Pack, columns - column)) : 0;
    const T* const from = first + Share::offset(i, row_stride, column_stride);
    if (Share::mine(i)) copy_pack<Pack>(tile + Tile::offset(row, column), from, column_stride, valid);
  }
}

//: copy_tile_rows
// As copy_tile_at_once, of rows that begin at `row_at(row)`; zeros where that is nullptr.
template <typename Tile, int Threads, int Pack, typename T, typename RowAt>
__device__ __forceinline__ void copy_tile_rows(T* tile, const RowAt& row_at, long long column_stride, int rows,
                                               int columns) {
  using Share = TileShare<Tile::ROWS, Tile::COLUMNS, Threads, Pack>;
#pragma unroll
  for (int i = 0; i < Share::SHARE; ++i) {
    const int row = Share::row(i), column = Share::column(i);
    if (Share::mine(i)) {
      const T* const from = row < rows ? row_at(row) : nullptr;
      const int valid = from != nullptr ? max(0, min(Pack, columns - column)) : 0;
      copy_pack<Pack>(tile + Tile::offset(row, column), from + column * column_stride, column_stride, valid);
    }
  }
}

//: TileRegisters
// One thread's share of a tile on its way through registers: `load` from global memory, later `store` to shared memory.
// With `Transposed` the rows of global memory become the columns of the tile.
template <typename Tile, int Threads, int Pack, bool Transposed>
struct TileRegisters {
  using T = typename Tile::Element;
  using Share =
      TileShare<Transposed ? Tile::COLUMNS : Tile::ROWS, Transposed ? Tile::ROWS : Tile::COLUMNS, Threads, Pack>;
  Vector<T, Pack> vectors[Share::SHARE];

  template <bool Whole>
  __device__ __forceinline__ void load(const T* first, long long row_stride, long long column_stride, int rows,
                                       int columns) {
#pragma unroll
    for (int i = 0; i < Share::SHARE; ++i) {
      const int inside = Whole ? Pack : Share::row(i) < rows ? max(0, min(Pack, columns - Share::column(i))) : 0;
      vectors[i] = load_vector<Pack>(first + Share::offset(i, row_stride, column_stride), Share::mine(i) ? inside : 0);
    }
  }

  __device__ __forceinline__ void store(T* tile) const {
#pragma unroll
    for (int i = 0; i < Share::SHARE; ++i) {
      const int row = Share::row(i);
      const int column = Share::column(i);
      if (Share::mine(i)) {
        if constexpr (Transposed) {
#pragma unroll
          for (int e = 0; e < Pack; ++e) tile[Tile::offset(column + e, row)] = vectors[i][e];
        } else {
          store_vector<Pack>(tile + Tile::offset(row, column), vectors[i]);
        }
      }
    }
  }
};

//: RowRegisters
// As TileRegisters, of rows that begin at `row_at(row)`; zeros where that is nullptr.
template <typename Tile, int Threads, int Pack>
struct RowRegisters : TileRegisters<Tile, Threads, Pack, false> {
  using Share = typename TileRegisters<Tile, Threads, Pack, false>::Share;

  template <typename RowAt>
  __device__ __forceinline__ void load_rows(const RowAt& row_at, long long column_stride, int rows, int columns) {
#pragma unroll
    for (int i = 0; i < Share::SHARE; ++i) {
      const int row = Share::row(i), column = Share::column(i);
      const auto* const from = Share::mine(i) && row < rows ? row_at(row) : nullptr;
      const int inside = from != nullptr ? max(0, min(Pack, columns - column)) : 0;
      this->vectors[i] = load_vector<Pack>(from + column * column_stride, inside);
    }
  }
};

//: raster
// The output tile of block `index`: columns of tiles in groups of `Group` rows (AlongM) or rows in groups of columns,
// so that the blocks of one wave share operands in L2.
template <bool AlongM, int Group>
__device__ __forceinline__ int2 raster(int index, int tiles_m, int tiles_n) {
  const int across = AlongM ? tiles_m : tiles_n;
  const int along = AlongM ? tiles_n : tiles_m;
  const int first = index / (Group * along) * Group;
  const int width = min(across - first, Group);
  const int within = index % (Group * along);
  const int x = first + within % width;
  const int y = within / width;
  return AlongM ? make_int2(x, y) : make_int2(y, x);
}
