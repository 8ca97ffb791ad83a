// Operands of mma.sync from tiles in shared memory. UNITS 16-byte units of K go into one instruction.

//: load_a
// The fragment of 16 rows from `row` on, at `k`. The tile is [M][K] where KMajor, else [K][M].
template <typename Tile, bool KMajor, int Units, typename T>
__device__ __forceinline__ void load_a(unsigned (&a)[2 * Units], const T* tile, int row, int k) {
  const int lane = threadIdx.x % 32;
  if constexpr (KMajor) {
    ptx::ldmatrix(a, ptx::smem_address(tile + Tile::offset(row + lane % 16, k + lane / 16 % Units * Tile::UNIT)));
  } else if constexpr (sizeof(T) == 2) {
    ptx::ldmatrix_trans(a, ptx::smem_address(tile + Tile::offset(k + lane / 16 % Units * 8 + lane % 8, row + lane / 8 % 2 * 8)));
  } else {
    constexpr int PACKED = 4 / sizeof(T);
#pragma unroll
    for (int r = 0; r < 2 * Units; ++r)
#pragma unroll
      for (int e = 0; e < PACKED; ++e)
        reinterpret_cast<T*>(&a[r])[e] =
            tile[Tile::offset(k + r / 2 * Tile::UNIT + lane % 4 * PACKED + e, row + r % 2 * 8 + lane / 4)];
  }
}

//: load_b
// The fragments of two times 8 columns from `column` on, at `k`. The tile is [N][K] where KMajor, else [K][N].
template <typename Tile, bool KMajor, int Units, typename T>
__device__ __forceinline__ void load_b(unsigned (&b)[2][Units], const T* tile, int column, int k) {
  const int lane = threadIdx.x % 32;
  auto& both = reinterpret_cast<unsigned(&)[2 * Units]>(b);
  if constexpr (KMajor) {
    ptx::ldmatrix(both, ptx::smem_address(tile + Tile::offset(column + lane / (8 * Units) % 2 * 8 + lane % 8,
                                                              k + lane / 8 % Units * Tile::UNIT)));
  } else if constexpr (sizeof(T) == 2) {
    ptx::ldmatrix_trans(both, ptx::smem_address(tile + Tile::offset(k + lane / 8 % Units * 8 + lane % 8,
                                                                    column + lane / (8 * Units) % 2 * 8)));
  } else {
    constexpr int PACKED = 4 / sizeof(T);
#pragma unroll
    for (int r = 0; r < 2 * Units; ++r)
#pragma unroll
      for (int e = 0; e < PACKED; ++e)
        reinterpret_cast<T*>(&both[r])[e] =
            tile[Tile::offset(k + r % Units * Tile::UNIT + lane % 4 * PACKED + e, column + r / Units * 8 + lane / 4)];
  }
}

//: exchange_quad
// Four neighbouring lanes hold two columns each of four tiles of eight columns; afterwards lane t of the four holds all eight
// columns of tile t. Two rounds of pairwise exchange.
template <typename A>
__device__ __forceinline__ void exchange_quad(A (&v)[4][2]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = lane & step;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      if (tile & step) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const A given = upper ? v[tile][e] : v[tile + step][e];
        const A taken = __shfl_xor_sync(0xffffffffu, given, step);
        if (upper)
          v[tile][e] = taken;
        else
          v[tile + step][e] = taken;
      }
    }
  }
}
