// Operands of mma.sync from tiles in shared memory, and its results. An instruction takes Units 16-byte units of K.

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

  // All fragments at step k of a stage.
  template <typename Registers>
  __device__ __forceinline__ void load_all(Registers (&r)[Count], const T* tiles, int stage, int k) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) load(reinterpret_cast<unsigned (&)[2 * Units]>(r[i]), tiles, stage, i, k);
  }

  static constexpr int NEIGHBOURS = 1;  // instructions whose results are neighbours

  // The row of a lane's results in half h of instruction i, or the column of its result e in instruction i.
  static __device__ __forceinline__ int outer(int i, int h_or_e) {
    const int l = threadIdx.x % 32;
    return IsA ? i * 16 + h_or_e * 8 + l / 4 : i * 8 + l % 4 * 2 + h_or_e;
  }
};

//: InHalves
// m16n8k16 by two of Mma, m16n8k8: all that sm_75 has.
template <auto Mma>
struct InHalves {
  template <typename Sums>
  __device__ __forceinline__ void operator()(Sums& sums, const unsigned (&a)[4], const unsigned (&b)[2]) const {
    Mma(sums, reinterpret_cast<const unsigned (&)[2]>(a[0]), reinterpret_cast<const unsigned (&)[1]>(b[0]));
    Mma(sums, reinterpret_cast<const unsigned (&)[2]>(a[2]), reinterpret_cast<const unsigned (&)[1]>(b[1]));
  }
};

//: PermutedFragmentsA
// As Fragments, of A in a tile [K][M] of 32-bit elements, which ldmatrix does not transpose. A lane reads GROUP
// neighbours at once: half h of fragment i holds row (2i + h) / GROUP * 8 GROUP + lane / 4 * GROUP + (2i + h) % GROUP.
template <typename Tile, int Count>
struct PermutedFragmentsA {
  using T = typename Tile::Element;
  static constexpr int GROUP = Count == 1 ? 2 : 4;
  int first;

  __device__ __forceinline__ PermutedFragmentsA(const T*, int first) : first(first) {}

  __device__ __forceinline__ void load_all(unsigned (&a)[Count][4], const T* tiles, int stage, int k) const {
    const T* const tile = tiles + stage * (Tile::BYTES / sizeof(T));
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int unit = 0; unit < 2; ++unit)
#pragma unroll
      for (int h = 0; h < 2 * Count; h += GROUP) {
        const int row = k * 8 + unit * 4 + lane % 4;
        const auto v = load_vector<GROUP>(tile + Tile::offset(row, first + h * 8 + lane / 4 * GROUP));
#pragma unroll
        for (int e = 0; e < GROUP; ++e) a[(h + e) / 2][unit * 2 + (h + e) % 2] = __float_as_uint(v[e]);
      }
  }

  static __device__ __forceinline__ int outer(int i, int h) {
    const int place = 2 * i + h;
    return place / GROUP * (8 * GROUP) + threadIdx.x % 32 / 4 * GROUP + place % GROUP;
  }
};

//: PermutedFragmentsB
// As Fragments, of B in a tile [K][N] of 32-bit elements. A lane reads NEIGHBOURS columns at once: column c of
// instruction j is column j / NEIGHBOURS * 8 NEIGHBOURS + c * NEIGHBOURS + j % NEIGHBOURS.
template <typename Tile, int Pairs>
struct PermutedFragmentsB {
  using T = typename Tile::Element;
  static constexpr int NEIGHBOURS = Pairs == 1 ? 2 : 4;
  int first;

  __device__ __forceinline__ PermutedFragmentsB(const T*, int first) : first(first) {}

  __device__ __forceinline__ void load_all(unsigned (&b)[Pairs][2][2], const T* tiles, int stage, int k) const {
    const T* const tile = tiles + stage * (Tile::BYTES / sizeof(T));
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int unit = 0; unit < 2; ++unit)
#pragma unroll
      for (int j = 0; j < 2 * Pairs; j += NEIGHBOURS) {
        const int row = k * 8 + unit * 4 + lane % 4;
        const auto v = load_vector<NEIGHBOURS>(tile + Tile::offset(row, first + j * 8 + lane / 4 * NEIGHBOURS));
#pragma unroll
        for (int e = 0; e < NEIGHBOURS; ++e) b[(j + e) / 2][(j + e) % 2][unit] = __float_as_uint(v[e]);
      }
  }

  static __device__ __forceinline__ int outer(int j, int e) {
    return j / NEIGHBOURS * (8 * NEIGHBOURS) + (threadIdx.x % 4 * 2 + e) * NEIGHBOURS + j % NEIGHBOURS;
  }
};

//: round_to_tf32
// Rounds every register of a step's fragments.
template <int Count, typename Registers>
__device__ __forceinline__ void round_to_tf32(Registers (&fragments)[Count]) {
  constexpr int WORDS = sizeof(Registers) / 4;
#pragma unroll
  for (int i = 0; i < Count; ++i)
#pragma unroll
    for (int r = 0; r < WORDS; ++r) {
      unsigned& word = reinterpret_cast<unsigned (&)[WORDS]>(fragments[i])[r];
      word = ptx::to_tf32(__uint_as_float(word));
    }
}

//: store_direct
// Every lane finishes its own results: neighbours along n, as OperandA and OperandB lay them out, from (m0, n0) on.
template <typename Value, typename OperandA, typename OperandB, int Rows, int Columns, typename Sum, typename Finish>
__device__ __forceinline__ void store_direct(const Sum (&results)[Rows][Columns][4], const Finish& finish, int m0,
                                             int n0) {
  if constexpr (OperandB::NEIGHBOURS > 1) {
    constexpr int GROUP = OperandB::NEIGHBOURS;
#pragma unroll
    for (int i = 0; i < Rows; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int j = 0; j < Columns; j += GROUP) {
          Value group[GROUP];
#pragma unroll
          for (int e = 0; e < GROUP; ++e) group[e] = results[i][j + e][r];
          finish(group, m0 + OperandA::outer(i, r / 2), n0 + OperandB::outer(j, r % 2));
        }
  } else {
#pragma unroll
    for (int i = 0; i < Rows; ++i)
#pragma unroll
      for (int j = 0; j < Columns; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Value pair[2] = {results[i][j][h * 2], results[i][j][h * 2 + 1]};
          finish(pair, m0 + OperandA::outer(i, h), n0 + OperandB::outer(j, 0));
        }
  }
}

//: store_exchanged
// As store_direct, where four lanes exchange results first, so that each finishes eight neighbours.
template <typename Value, typename OperandA, int Rows, int Columns, typename Sum, typename Finish>
__device__ __forceinline__ void store_exchanged(const Sum (&results)[Rows][Columns][4], const Finish& finish, int m0,
                                                int n0) {
#pragma unroll
  for (int i = 0; i < Rows; ++i)
#pragma unroll
    for (int j = 0; j < Columns; j += 4)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Value columns[4][2];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          columns[t][0] = results[i][j + t][h * 2];
          columns[t][1] = results[i][j + t][h * 2 + 1];
        }
        exchange_quad(columns);
        finish(reinterpret_cast<const Value(&)[8]>(columns), m0 + OperandA::outer(i, h),
               n0 + (j + static_cast<int>(threadIdx.x % 4)) * 8);
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
