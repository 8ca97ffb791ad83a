// Tiles that are read along one dimension of memory and written along another, through shared memory.

//: load_part
// The elements of a vector whose number is from `low` to below `high`, `stride` apart from `p`; the others are zero.
template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load_part(const T* p, long long stride, int low, int high) {
  Vector<T, N> v = {};
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i >= low && i < high) v[i] = p[i * stride];
  return v;
}

//: store_part
// The elements of a vector whose number is from `low` to below `high`, `stride` apart from `p`.
template <int N, typename T>
__device__ __forceinline__ void store_part(T* p, const Vector<T, N>& v, long long stride, int low, int high) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i >= low && i < high) p[i * stride] = v[i];
}

//: UnitPartInput
// Neighbours in memory, as many as `high` if these are fewer.
template <typename T, int N>
struct UnitPartInput {
  using Items = Vector<T, N>;
  static __device__ __forceinline__ Items load(const T* p, long long, int, int high) { return load_vector<N>(p, high); }
};

//: PartInput
// Single elements, of which the numbers from `low` to below `high` are there.
template <typename T, int N>
struct PartInput {
  using Items = Vector<T, N>;
  static __device__ __forceinline__ Items load(const T* p, long long stride, int low, int high) {
    return load_part<N>(p, stride, low, high);
  }
};

//: BroadcastPartInput
// One element for all.
template <typename T>
struct BroadcastPartInput {
  using Items = T;
  static __device__ __forceinline__ Items load(const T* p, long long, int, int) { return *p; }
};

//: UnitPartOutput
// Neighbours in memory, by vectors where all of one are there.
template <typename T, int N, typename Store>
struct UnitPartOutput {
  template <bool Whole>
  static __device__ __forceinline__ void store(T* p, const Vector<T, N>& v, long long, int low, int high) {
    if (Whole || (low <= 0 && high >= N)) {
      store_vector<N, Store>(p, v);
    } else {
      store_part<N>(p, v, 1, low, high);
    }
  }
};

//: PartOutput
// Single elements, of which the numbers from `low` to below `high` are there.
template <typename T, int N>
struct PartOutput {
  template <bool Whole>
  static __device__ __forceinline__ void store(T* p, const Vector<T, N>& v, long long stride, int low, int high) {
    store_part<N>(p, v, stride, low, high);
  }
};

//: elements_past
// How many elements past a multiple of N elements an address is.
template <int N, typename T>
__device__ __forceinline__ int elements_past(const T* p) {
  return static_cast<int>(reinterpret_cast<unsigned long long>(p) / sizeof(T) % N);
}

//: TransposedTile
// LINES lines of an input, each Rows elements along its contiguous dimension, on the way through registers (`load`) to
// shared memory (`store`), where row r holds element r of every line, to be read along the lines (`read`).
//
// Lines are loaded in vectors of In elements. Where they are not aligned to that (Shifted), the vectors are the aligned
// ones that cover the line; In lines on, an address is as far past an aligned one. Elements narrower than a word go to
// shared memory in words, of as many lines as it takes. Rows lie Pitch bytes apart: an odd number of words, or else
// their 16-byte units are permuted. With Shifted there is room for In rows more at both ends.
template <typename T, int Rows, int Lines, int In, bool Shifted, int Pitch, int Threads>
struct TransposedTile {
  static constexpr int SIZE = sizeof(T);
  static constexpr int STEP = SIZE < 4 ? 4 : SIZE;  // bytes of a word, or of an element
  static constexpr int GROUP = Shifted ? 1 : STEP / SIZE;
  static constexpr bool PERMUTED = Pitch / STEP % 2 == 0;
  static constexpr int PHASES = Lines * SIZE / 16 < 8 ? Lines * SIZE / 16 : 8;
  // Rows before and after the tile, where the ends of shifted vectors fall.
  static constexpr int MARGIN = Shifted ? In : 0;
  static constexpr int VECTORS = Rows / In;
  static constexpr int GROUPS = Lines / GROUP;
  // Neighbouring lanes load 128 bytes of a line, more where lines are few, then the same of the next lines: ABREAST
  // groups of them, STEPS times.
  static constexpr int FEW = !Shifted && Threads % GROUPS == 0 ? Threads / GROUPS : 0;
  static constexpr int WIDE = FEW > 128 / (In * SIZE) ? FEW : 128 / (In * SIZE);
  static constexpr int BESIDE = WIDE < VECTORS ? WIDE : VECTORS;
  static constexpr int ABREAST = Threads / BESIDE;
  static constexpr int STEPS = (GROUPS + ABREAST - 1) / ABREAST;
  static constexpr int MAIN = VECTORS / BESIDE * STEPS;
  static constexpr int ENDS =
      Shifted ? (Lines + Threads - 1) / Threads : 0;  // one more vector for the end of each line
  static constexpr int SHARE = MAIN + ENDS;
  static_assert(Pitch >= Lines * SIZE, "rows do not overlap");
  static_assert(!Shifted || (ABREAST % In == 0 && Threads % In == 0), "the lines of a thread are alike");
  using Word = typename Bits<STEP>::Type;

  Vector<T, In> vectors[SHARE][GROUP];
  int past = 0, past_end = 0;  // elements that the thread's lines begin past aligned ones: whole lines, and their ends

  static __device__ __forceinline__ int line(int i) {
    return i < MAIN ? (threadIdx.x / BESIDE + i % STEPS * ABREAST) * GROUP : threadIdx.x + (i - MAIN) * Threads;
  }
  // The first element of vector i, counted from the first of the tile.
  __device__ __forceinline__ int row(int i) const {
    return i < MAIN ? static_cast<int>(threadIdx.x % BESIDE + i / STEPS * BESIDE) * In - past : Rows - past_end;
  }
  // Whether vector i is one of the tile's.
  static __device__ __forceinline__ bool within(int i) {
    return (i < MAIN ? STEPS * ABREAST == GROUPS : Lines % Threads == 0) || line(i) < Lines;
  }

  // Where element `row` of a line lies, in bytes; permuted, both of a word's lines have the same unit.
  static __device__ __forceinline__ int offset(int row, int line) {
    if constexpr (PERMUTED) {
      const unsigned r = row, at = line * SIZE;
      return (r + MARGIN) * Pitch + ((at / 16) ^ (r / In % PHASES)) * 16 + at % 16;
    } else {
      return (row + MARGIN) * Pitch + line * SIZE;
    }
  }

  // Row 0 of line 0 is at `p`, lines are `stride` apart. Lines from `first` to below `last` exist, and of them elements
  // from `low` to below `high`, counted from p; a Whole tile has all that its vectors touch.
  template <bool Whole, typename Load = LoadPlain>
  __device__ __forceinline__ void load(const T* p, long long stride, int first, int last, int low, int high) {
    if constexpr (Shifted) {
      past = elements_past<In>(p + line(0) * stride);
      past_end = elements_past<In>(p + line(MAIN) * stride);
    }
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
#pragma unroll
      for (int g = 0; g < GROUP; ++g) {
        const int l = line(i) + g, r = row(i);
        const T* const from = p + l * stride + r;
        const bool mine = within(i) && (i < MAIN || past_end > 0);
        if (Whole || (l >= first && l < last && r >= low && r + In <= high)) {
          vectors[i][g] = {};
          if (mine) vectors[i][g] = load_vector<In, Load>(from);
        } else {
          vectors[i][g] = load_part<In>(from, 1, low - r, mine && l >= first && l < last ? high - r : 0);
        }
      }
    }
  }

  // Every element of the tile in shared memory is written.
  __device__ __forceinline__ void store(unsigned char* tile) const {
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
      if (within(i)) {
        unsigned char* const to = tile + offset(row(i), line(i));
#pragma unroll
        for (int e = 0; e < In; ++e) {
          if constexpr (Shifted) {
            *reinterpret_cast<T*>(to + e * Pitch) = vectors[i][0][e];
          } else {
            *reinterpret_cast<Word*>(to + e * Pitch) = word(i, e);  // one unit for all of a vector
          }
        }
      }
    }
  }

  // Element e of all lines of a group.
  __device__ __forceinline__ Word word(int i, int e) const {
    if constexpr (SIZE < 4) {
      using Piece = typename Bits<SIZE>::Type;
      Word packed = 0;
#pragma unroll
      for (int g = 0; g < GROUP; ++g)
        packed |= static_cast<Word>(reinterpret_cast<const Piece*>(vectors[i][g].access)[e]) << (8 * SIZE * g);
      return packed;
    } else {
      return reinterpret_cast<const Word*>(vectors[i][0].access)[e];
    }
  }

  // N elements of a row from a line on, which is a multiple of N unless Any.
  template <int N, bool Any>
  static __device__ __forceinline__ Vector<T, N> read(const unsigned char* tile, int row, int line) {
    Vector<T, N> v;
    if constexpr (N * SIZE < 4 || (Any && SIZE >= 4)) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = *reinterpret_cast<const T*>(tile + offset(row, line + i));
    } else if constexpr (Any) {
      const int past = line * SIZE % 4;  // bytes of the first word that are not wanted
      unsigned words[N * SIZE / 4 + 1];
#pragma unroll
      for (int i = 0; i <= N * SIZE / 4; ++i)
        words[i] = i < N * SIZE / 4 || past
                       ? *reinterpret_cast<const unsigned*>(tile + offset(row, line - past / SIZE + i * (4 / SIZE)))
                       : 0;
#pragma unroll
      for (int i = 0; i < N * SIZE / 4; ++i)
        reinterpret_cast<unsigned*>(v.access)[i] =
            static_cast<unsigned>((static_cast<unsigned long long>(words[i + 1]) << 32 | words[i]) >> (8 * past));
    } else if constexpr (PERMUTED) {
#pragma unroll
      for (int i = 0; i < v.ACCESSES; ++i)
        v.access[i] =
            *reinterpret_cast<const typename Vector<T, N>::Access*>(tile + offset(row, line + i * (v.ACCESS / SIZE)));
    } else {
#pragma unroll
      for (int i = 0; i < N * SIZE / STEP; ++i)
        reinterpret_cast<Word*>(v.access)[i] = *reinterpret_cast<const Word*>(tile + offset(row, line) + i * STEP);
    }
    return v;
  }
};
