// Operands of wgmma in shared memory, as TMA leaves them there. A tile consists of columns of swizzle atoms, which are
// as wide as the swizzle: 128 bytes, or fewer where the tile is narrow. Along K ("K-major") such a column has a row for
// each of the tile's rows or columns; across it ("MN-major") one for each k. Source: PTX ISA, "Shared memory matrix
// layout" of wgmma.

//: OperandTile
// The tile of A (Extent rows) or of B (Extent columns), Depth deep along K, in ATOMS columns of swizzle atoms that are
// RowBytes wide.
template <typename T, bool KMajor, int Extent, int Depth, int RowBytes>
struct OperandTile {
  static constexpr bool K_MAJOR = KMajor;
  static constexpr int EXTENT = Extent, DEPTH = Depth;
  static constexpr int BYTES = Extent * Depth * static_cast<int>(sizeof(T));
  static constexpr int WIDTH = RowBytes / static_cast<int>(sizeof(T));  // elements of a row
  static constexpr int ATOMS = (KMajor ? Depth : Extent) / WIDTH;
  static constexpr int ATOM_BYTES = (KMajor ? Extent : Depth) * RowBytes;  // of a column of them
  static constexpr int STEP = 32 / static_cast<int>(sizeof(T));            // k of one instruction
  static constexpr int STEPS = Depth / STEP;

  // Bytes from the tile's start to the operand of an instruction: `step` along K, rows or columns from `first`.
  static constexpr __device__ __forceinline__ int offset(int first, int step) {
    if (KMajor) return step * 32 / RowBytes * ATOM_BYTES + step * 32 % RowBytes + first * RowBytes;
    return first / WIDTH * ATOM_BYTES + step * STEP * RowBytes;
  }

  // Byte offset, as the swizzle leaves it, of one element of a tile that is MN-major.
  static __device__ __forceinline__ int address(int outer, int k) {
    constexpr int UNIT = 16 / static_cast<int>(sizeof(T));
    const int unit = outer % WIDTH / UNIT ^ k % 8;
    return outer / WIDTH * ATOM_BYTES + k * RowBytes + unit * 16 + outer % UNIT * static_cast<int>(sizeof(T));
  }

  // The descriptor of the operand at a shared address. Between groups of eight rows lie 8 * RowBytes, between columns
  // of atoms that one instruction spans ATOM_BYTES.
  static __device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    constexpr unsigned long long SWIZZLE = RowBytes == 128 ? 1 : RowBytes == 64 ? 2 : 3;
    constexpr unsigned long long LEADING = KMajor ? 1 : ATOM_BYTES / 16;
    constexpr unsigned long long STRIDE = 8 * RowBytes / 16;
    return (address & 0x3ffff) >> 4 | LEADING << 16 | STRIDE << 32 | SWIZZLE << 62;
  }
};

//: add_scaled
// Adds products of an instruction's 64 rows, as wgmma leaves them, to sums: each times the scale of its row and that of
// its column. `rows` and `columns` are those of the tile, one for every ShareM rows or ShareN columns. `first` is the
// first of the 64 in the tile.
template <int ShareM, int ShareN, typename Rows, int Count>
__device__ __forceinline__ void add_scaled(float (&sums)[Count], const float (&products)[Count], const float* rows,
                                           const float* columns, int first, int thread) {
  const int warp = thread / 32, lane = thread % 32, pair = lane % 4 * 2;
  const float scales[2] = {rows[(first + Rows::row(warp, lane, 0)) / ShareM],
                           rows[(first + Rows::row(warp, lane, 1)) / ShareM]};
#pragma unroll
  for (int j = 0; j < Count; ++j) {
    const int column = ShareN % 8 == 0 ? j / 4 * 8 / ShareN : (j / 4 * 8 + pair + j % 2) / ShareN;
    sums[j] += products[j] * (scales[j / 2 % 2] * columns[column]);
  }
}

//: copy_rows
// All blocks of the grid copy a matrix to `destination`, whose rows lie `pitch` elements apart, whole vectors with room
// for their last one. A thread has several vectors under way. Transposed: the source is contiguous down its
// columns, and is transposed 32 x 32 elements at a time in 32 * 33 elements of shared memory a warp.
template <bool Transposed, typename T>
__device__ __forceinline__ void copy_rows(T* destination, int pitch, const T* source, long long row_stride,
                                          long long column_stride, int rows, int columns, unsigned char* shared) {
  if constexpr (Transposed) {
    const int lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
    const int across = (columns + 31) / 32;
    const long long tiles = static_cast<long long>((rows + 31) / 32) * across;
    const long long first = static_cast<long long>(blockIdx.x) * warps + threadIdx.x / 32;
    T* const transposed = reinterpret_cast<T*>(shared) + threadIdx.x / 32 * (32 * 33);
    for (long long tile = first; tile < tiles; tile += static_cast<long long>(gridDim.x) * warps) {
      const long long row = tile / across * 32;
      const long long column = tile % across * 32;
#pragma unroll 8
      for (int i = 0; i < 32; ++i)
        if (row + lane < rows && column + i < columns)
          transposed[i * 33 + lane] = source[(row + lane) * row_stride + (column + i) * column_stride];
      __syncwarp();
#pragma unroll 8
      for (int i = 0; i < 32; ++i)
        if (row + i < rows && column + lane < columns)
          destination[(row + i) * pitch + column + lane] = transposed[lane * 33 + i];
      __syncwarp();
    }
  } else {
    constexpr int N = 16 / sizeof(T), AHEAD = 4;
    const int across = (columns + N - 1) / N;  // vectors of a row
    const int threads = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    const int down = threads / across, right = threads % across;  // from a thread's vector to its next
    int row = first / across, vector = first % across;
    while (row < rows) {
      unsigned words[AHEAD][Astride<T, N>::ALL];
      int rows_of[AHEAD], columns_of[AHEAD];
      // Whole vectors are asked for first, all of them: no load waits for another.
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        rows_of[i] = row;
        columns_of[i] = vector * N;
        const Astride<T, N> lies(source + row * row_stride + columns_of[i]);
        if (row < rows && column_stride == 1 && lies.within(columns_of[i], columns)) lies.load(words[i]);
        vector += right;
        row += down + (vector >= across ? 1 : 0);
        vector -= vector >= across ? across : 0;
      }
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        if (rows_of[i] >= rows) break;
        const T* const from = source + rows_of[i] * row_stride;
        const Astride<T, N> lies(from + columns_of[i]);
        Vector<T, N> value;
        if (column_stride == 1 && lies.within(columns_of[i], columns)) {
          value = lies.taken(words[i]);
        } else {
          value = load_strided<N>(from + columns_of[i] * column_stride, column_stride, columns - columns_of[i]);
        }
        store_vector<N>(destination + static_cast<long long>(rows_of[i]) * pitch + columns_of[i], value);
      }
    }
  }
}

//: grid_barrier_for_tma
// All blocks wait until what they wrote to global memory can be read by TMA. `counters` are two, 0 before the launch
// and after it.
__device__ __forceinline__ void grid_barrier_for_tma(int* counters) {
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::atomic_add_release(counters, 1);
    ptx::wait_for(counters, gridDim.x);
    ptx::fence_proxy_async_global();
    if (ptx::atomic_add_release(counters + 1, 1) == static_cast<int>(gridDim.x) - 1) {
      counters[0] = 0;
      counters[1] = 0;
    }
  }
  __syncthreads();
}
