// Operands of mma.sync from tiles in shared memory. An instruction takes Units 16-byte units of K.

//: Fragments
// The fragments of a warp: Count of 16 rows of A, or of 16 columns of B (two instructions wide), at each of Steps steps
// along K. The tile is [M][K] or [N][K] where KMajor, else [K][M] or [K][N]. `lane` holds this lane's addresses for
// ldmatrix: those that differ by a constant share one.
template <typename Tile, bool IsA, bool KMajor, int Units, int Count, int Steps>
struct Fragments {
  using T = typename Tile::Element;
  static constexpr int STEP = Units * Tile::UNIT;
  static constexpr bool GATHERED = !KMajor && sizeof(T) == 1;
  static constexpr int ADDRESSES = GATHERED ? 1 : KMajor ? Steps : Count;
  unsigned lane[ADDRESSES];
  int start;

  // `tiles` is the first stage's tile, `first` the warp's first row or column in it.
  __device__ __forceinline__ Fragments(const T* tiles, int first) : start(first) {
    const int l = threadIdx.x % 32;
    // Which of the matrices of 8 x 8 a lane gives the address of: A has its rows first and then K, B the other way
    // round.
    const int outer = (IsA ? l / 8 % 2 : l / (8 * Units) % 2) * 8;
    const int unit = IsA ? l / 16 % Units : l / 8 % Units;
#pragma unroll
    for (int i = 0; i < ADDRESSES; ++i) {
      const int row = KMajor ? first + outer + l % 8 : unit * Tile::UNIT + l % 8;
      const int column = KMajor ? i * STEP + unit * Tile::UNIT : first + i * 16 + outer;
      lane[i] = ptx::smem_address(tiles + Tile::offset(row, column));
    }
  }

  // Fragment i at step k of a stage.
  __device__ __forceinline__ void load(unsigned (&r)[2 * Units], const T* tiles, int stage, int i, int k) const {
    if constexpr (GATHERED) {
      const T* const tile = tiles + stage * (Tile::BYTES / sizeof(T));
      const int l = threadIdx.x % 32;
#pragma unroll
      for (int n = 0; n < 2 * Units; ++n) {
        const int outer = start + i * 16 + (IsA ? n % 2 : n / Units) * 8 + l / 4;
        const int unit = IsA ? n / 2 : n % Units;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          reinterpret_cast<T*>(&r[n])[e] = tile[Tile::offset(k * STEP + unit * Tile::UNIT + l % 4 * 4 + e, outer)];
      }
    } else if constexpr (KMajor) {
      ptx::ldmatrix(r, lane[k] + stage * Tile::BYTES + i * (16 * Tile::PITCH * static_cast<int>(sizeof(T))));
    } else {
      ptx::ldmatrix_trans(r, lane[i] + stage * Tile::BYTES + k * (STEP * Tile::PITCH * static_cast<int>(sizeof(T))));
    }
  }
};

//: load_a_permuted
// All fragments of A of a warp, from a tile [K][M] of 32-bit elements. A lane takes GROUP neighbours at once: half h of
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
// All fragments of B of a warp, from a tile [K][N] of 32-bit elements. A lane takes GROUP neighbours at once: column c
// of fragment j is column j / GROUP * 8 GROUP + c * GROUP + j % GROUP.
template <typename Tile, int Pairs, typename T>
__device__ __forceinline__ void load_b_permuted(unsigned (&b)[Pairs][2][2], const T* tile, int column, int k) {
  constexpr int GROUP = Pairs == 1 ? 2 : 4;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int unit = 0; unit < 2; ++unit)
#pragma unroll
    for (int j = 0; j < 2 * Pairs; j += GROUP) {
      const auto v =
          load_vector<GROUP>(tile + Tile::offset(k + unit * 4 + lane % 4, column + j * 8 + lane / 4 * GROUP));
#pragma unroll
      for (int e = 0; e < GROUP; ++e) b[(j + e) / 2][(j + e) % 2][unit] = __float_as_uint(v[e]);
    }
}

//: exchange_quad
// Four neighbouring lanes hold two columns each of four tiles of eight columns; afterwards lane t of the four holds all
// eight columns of tile t. Two rounds of pairwise exchange.
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
