// Tiles of matrices in shared memory, the copies that fill them and the order in which blocks take output tiles.

//: Tile
// ROWS rows of COLUMNS elements. `Xor` permutes the 16-byte units of a row so that eight rows read at one column touch all
// banks; otherwise `Padding` units stand between the rows for the same end.
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

//: Bool
// A constant as the argument of a generic lambda.
template <bool Value>
struct Bool {
  static constexpr bool value = Value;
};

//: copy_tile
// All threads of a block copy a tile from global to shared memory, Pack elements at a time. What lies beyond `rows` and `columns`
// becomes zero; a Whole tile has nothing beyond. Copies of 4 bytes and more are asynchronous: commit and wait for them.
template <typename Tile, int Threads, int Pack, bool Whole, typename T>
__device__ __forceinline__ void copy_tile(T* tile, const T* source, long long row_stride, long long column_stride, int rows,
                                          int columns) {
  constexpr int BYTES = Pack * sizeof(T);
  constexpr int VECTORS = Tile::COLUMNS / Pack;
  constexpr int COUNT = Tile::ROWS * VECTORS;
  // Where it works out a thread stays in its column and moves down the rows, so that one address serves all its copies.
  constexpr bool STRAIGHT = Threads % VECTORS == 0;
  const T* const first = source + threadIdx.x / VECTORS * row_stride + threadIdx.x % VECTORS * Pack * column_stride;
#pragma unroll
  for (int i = 0; i < (COUNT + Threads - 1) / Threads; ++i) {
    const int vector = threadIdx.x + i * Threads;
    const int row = STRAIGHT ? threadIdx.x / VECTORS + i * (Threads / VECTORS) : vector / VECTORS;
    const int column = (STRAIGHT ? threadIdx.x : vector) % VECTORS * Pack;
    if (COUNT % Threads == 0 || vector < COUNT) {
      const T* const from = STRAIGHT ? first + i * (Threads / VECTORS * row_stride) : source + row * row_stride + column * column_stride;
      T* const to = tile + Tile::offset(row, column);
      if constexpr (Whole && BYTES >= 4) {
        ptx::cp_async<BYTES>(ptx::smem_address(to), from);
      } else {
        const int valid = Whole ? Pack : row < rows ? max(0, min(Pack, columns - column)) : 0;
        if constexpr (BYTES >= 4) {
          ptx::cp_async<BYTES>(ptx::smem_address(to), valid > 0 ? from : source, valid * static_cast<int>(sizeof(T)));
        } else {
#pragma unroll
          for (int e = 0; e < Pack; ++e) to[e] = e < valid ? from[e * column_stride] : T();
        }
      }
    }
  }
}

//: TileRegisters
// One thread's share of a tile on its way through registers: `load` from global memory, later `store` to shared memory. With
// `Transposed` the rows of global memory become the columns of the tile.
template <typename Tile, int Threads, int Pack, bool Transposed>
struct TileRegisters {
  using T = typename Tile::Element;
  static constexpr int VECTORS = (Transposed ? Tile::ROWS : Tile::COLUMNS) / Pack;
  static constexpr int COUNT = Tile::ROWS * Tile::COLUMNS / Pack;
  static constexpr int SHARE = (COUNT + Threads - 1) / Threads;
  Vector<T, Pack> vectors[SHARE];

  template <bool Whole>
  __device__ __forceinline__ void load(const T* source, long long row_stride, long long column_stride, int rows, int columns) {
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
      const int vector = threadIdx.x + i * Threads;
      const int row = vector / VECTORS;
      const int column = vector % VECTORS * Pack;
      const bool mine = COUNT % Threads == 0 || vector < COUNT;
      const int valid = Whole ? (mine ? Pack : 0) : mine && row < rows ? max(0, min(Pack, columns - column)) : 0;
      const T* from = source + row * row_stride + column * column_stride;
      vectors[i] = load_vector<Pack>(from, valid);
    }
  }

  __device__ __forceinline__ void store(T* tile) const {
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
      const int vector = threadIdx.x + i * Threads;
      const int row = vector / VECTORS;
      const int column = vector % VECTORS * Pack;
      if (COUNT % Threads == 0 || vector < COUNT) {
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

//: raster
// The output tile of block `index`: columns of tiles in groups of `Group` rows (AlongM) or rows in groups of columns, so that
// the blocks of one wave share operands in L2.
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
