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

//: load_a_permuted
// As load_a for all fragments of a warp, from a tile [K][M] of 32-bit elements. A lane takes GROUP neighbours at once: half h of
// fragment i holds row (2i + h) / GROUP * 8 GROUP + lane / 4 * GROUP + (2i + h) % GROUP.
template <typename Tile, int Fragments, typename T>
__device__ __forceinline__ void load_a_permuted(unsigned (&a)[Fragments][4], const T* tile, int row, int k) {
  constexpr int GROUP = Fragments == 1 ? 2 : 4;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int unit = 0; unit < 2; ++unit)
#pragma unroll
    for (int h = 0; h < 2 * Fragments; h += GROUP) {
      const auto v = load_vector<GROUP>(tile + Tile::offset(k + unit * 4 + lane % 4, row + h * 8 + lane / 4 * GROUP));
#pragma unroll
      for (int e = 0; e < GROUP; ++e) a[(h + e) / 2][unit * 2 + (h + e) % 2] = __float_as_uint(v[e]);
    }
}

//: load_b_permuted
// As load_b for all fragments of a warp, from a tile [K][N] of 32-bit elements. A lane takes GROUP neighbours at once: column c of
// fragment j is column j / GROUP * 8 GROUP + c * GROUP + j % GROUP.
template <typename Tile, int Pairs, typename T>
__device__ __forceinline__ void load_b_permuted(unsigned (&b)[Pairs][2][2], const T* tile, int column, int k) {
  constexpr int GROUP = Pairs == 1 ? 2 : 4;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int unit = 0; unit < 2; ++unit)
#pragma unroll
    for (int j = 0; j < 2 * Pairs; j += GROUP) {
      const auto v = load_vector<GROUP>(tile + Tile::offset(k + unit * 4 + lane % 4, column + j * 8 + lane / 4 * GROUP));
#pragma unroll
      for (int e = 0; e < GROUP; ++e) b[(j + e) / 2][(j + e) % 2][unit] = __float_as_uint(v[e]);
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
