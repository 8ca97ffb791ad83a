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

//: elements_past
// How many elements past a multiple of N elements an address is.
template <int N, typename T>
__device__ __forceinline__ int elements_past(const T* p) {
  return static_cast<int>(reinterpret_cast<unsigned long long>(p) / sizeof(T) % N);
}

//: TurnedTile
// LINES lines of an input, each Rows elements along its contiguous dimension, on the way through registers (`load`) to
// shared memory (`store`), where row r holds element r of every line, to be read along the lines (`read`).
//
// Lines are loaded in aligned vectors of In elements. Elements narrower than a word go to shared memory in words, of as
// many lines as it takes. Rows lie Pitch bytes apart: an odd number of words, or else their 16-byte units are permuted.
template <typename T, int Rows, int Lines, int In, int Pitch, int Threads>
struct TurnedTile {
  static constexpr int SIZE = sizeof(T);
  static constexpr int STEP = SIZE < 4 ? 4 : SIZE;  // bytes of a word, or of an element
  static constexpr int GROUP = STEP / SIZE;
  static constexpr bool PERMUTED = Pitch / STEP % 2 == 0;
  static constexpr int PHASES = Lines * SIZE / 16 < 8 ? Lines * SIZE / 16 : 8;
  static constexpr int VECTORS = Rows / In;
  static constexpr int GROUPS = Lines / GROUP;
  // Neighbouring lanes load 128 bytes of a line, more where lines are few, then the same of the next lines: ABREAST
  // groups of them, STEPS times.
  static constexpr int FEW = Threads % GROUPS == 0 ? Threads / GROUPS : 0;
  static constexpr int WIDE = FEW > 128 / (In * SIZE) ? FEW : 128 / (In * SIZE);
  static constexpr int BESIDE = WIDE < VECTORS ? WIDE : VECTORS;
  static constexpr int ABREAST = Threads / BESIDE;
  static constexpr int STEPS = (GROUPS + ABREAST - 1) / ABREAST;
  static constexpr int SHARE = VECTORS / BESIDE * STEPS;
  static_assert(Pitch >= Lines * SIZE, "rows do not overlap");
  using Word = typename Bits<STEP>::Type;

  Vector<T, In> vectors[SHARE][GROUP];

  static __device__ __forceinline__ int line(int i) { return (threadIdx.x / BESIDE + i % STEPS * ABREAST) * GROUP; }
  // The first element of vector i, counted from the first of the tile.
  static __device__ __forceinline__ int row(int i) {
    return static_cast<int>(threadIdx.x % BESIDE + i / STEPS * BESIDE) * In;
  }
  // Whether vector i is one of the tile's.
  static __device__ __forceinline__ bool within(int i) { return STEPS * ABREAST == GROUPS || line(i) < Lines; }

  // Where element `row` of a line lies, in bytes; permuted, both of a word's lines have the same unit.
  static __device__ __forceinline__ int offset(int row, int line) {
    if constexpr (PERMUTED) {
      const unsigned r = row, at = line * SIZE;
      return r * Pitch + ((at / 16) ^ (r / In % PHASES)) * 16 + at % 16;
    } else {
      return row * Pitch + line * SIZE;
    }
  }

  // Row 0 of line 0 is at `p`, lines are `stride` apart. Lines from `first` to below `last` exist, and of them elements
  // from `low` to below `high`, counted from p; a Whole tile has all that its vectors touch.
  template <bool Whole, typename Load = LoadPlain>
  __device__ __forceinline__ void load(const T* p, long long stride, int first, int last, int low, int high) {
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
#pragma unroll
      for (int g = 0; g < GROUP; ++g) {
        const int l = line(i) + g, r = row(i);
        const T* const from = p + l * stride + r;
        if (Whole || (l >= first && l < last && r >= low && r + In <= high)) {
          vectors[i][g] = {};
          if (within(i)) vectors[i][g] = load_vector<In, Load>(from);
        } else {
          vectors[i][g] = load_part<In>(from, 1, low - r, within(i) && l >= first && l < last ? high - r : 0);
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
        for (int e = 0; e < In; ++e) *reinterpret_cast<Word*>(to + e * Pitch) = word(i, e);  // one unit for all of a vector
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

//: LinedTile
// As TurnedTile, of lines that no vector is aligned to: the vectors are the aligned ones that cover a line, and go to
// shared memory as they are, by way of registers or at once (`copy`), so that a line lies there as in memory, as far
// past an aligned address. A row is read element by element, each of another line. Lines lie Pitch bytes apart, and 16
// more from each Window of them to the next, so that lanes that read a row's vectors of that many lines have different
// banks.
template <typename T, int Rows, int Lines, int In, int Pitch, int Window, int Threads>
struct LinedTile {
  static constexpr int SIZE = sizeof(T);
  static constexpr int VECTORS = Rows / In;
  // Neighbouring lanes load 128 bytes of a line, then the same of the next lines: ABREAST of them, STEPS times.
  static constexpr int BESIDE = 128 / (In * SIZE) < VECTORS ? 128 / (In * SIZE) : VECTORS;
  static constexpr int ABREAST = Threads / BESIDE;
  static constexpr int STEPS = (Lines + ABREAST - 1) / ABREAST;
  static constexpr int MAIN = VECTORS / BESIDE * STEPS;
  static constexpr int ENDS = (Lines + Threads - 1) / Threads;  // one more vector for the end of each line
  static constexpr int SHARE = MAIN + ENDS;
  static_assert(Pitch >= (Rows + In) * SIZE && Pitch % 16 == 0, "lines do not overlap, and their vectors are aligned");
  static_assert(ABREAST % In == 0 && Threads % In == 0, "the lines of a thread are alike");

  Vector<T, In> vectors[SHARE];  // on their way
  int past = 0, step = 0;  // elements that line 0 begins past an aligned address, and those that the next does beyond
  int stored = 0;          // `past` of the tile in shared memory

  static __device__ __forceinline__ int line(int i) {
    return i < MAIN ? threadIdx.x / BESIDE + i % STEPS * ABREAST : threadIdx.x + (i - MAIN) * Threads;
  }
  // Where vector i is in its line, counted from the first.
  static __device__ __forceinline__ int column(int i) {
    return i < MAIN ? static_cast<int>(threadIdx.x % BESIDE + i / STEPS * BESIDE) * In : Rows;
  }
  // Whether vector i is one of the tile's.
  static __device__ __forceinline__ bool within(int i) {
    return (i < MAIN ? STEPS * ABREAST == Lines : Lines % Threads == 0) || line(i) < Lines;
  }
  // Where a line begins in shared memory, in bytes.
  static __device__ __forceinline__ int start(int line) {
    return line * Pitch + static_cast<int>(static_cast<unsigned>(line) / Window * 16);
  }
  // How many elements past an aligned address a line begins, where line 0 does so by `first`.
  __device__ __forceinline__ int past_of(int line, int first) const {
    return static_cast<int>(static_cast<unsigned>(first + line * step) % In);
  }

  __device__ __forceinline__ T* place(unsigned char* tile, int i) const {
    return reinterpret_cast<T*>(tile + start(line(i))) + column(i);
  }
  // Calls `whole` for each vector of this thread that exists, and `part` for those of which elements from a number to
  // below another one do: with the vector's number, where it is, and that.
  template <bool Whole, typename OfWhole, typename OfPart>
  __device__ __forceinline__ void each(const T* p, long long stride, int first, int last, int low, int high,
                                       OfWhole whole, OfPart part) {
    past = elements_past<In>(p);
    step = static_cast<int>(static_cast<unsigned long long>(stride) % In);
    const int main = past_of(line(0), past), end = past_of(line(MAIN), past);
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
      const int l = line(i), r = column(i) - (i < MAIN ? main : end);
      const T* const from = p + l * stride + r;
      const bool mine = within(i) && (i < MAIN || end > 0);
      if (mine && (Whole || (l >= first && l < last && r >= low && r + In <= high))) {
        whole(i, from);
      } else {
        part(i, from, low - r, !Whole && mine && l >= first && l < last ? high - r : 0);
      }
    }
  }

  // As TurnedTile's.
  template <bool Whole, typename Load = LoadPlain>
  __device__ __forceinline__ void load(const T* p, long long stride, int first, int last, int low, int high) {
    each<Whole>(
        p, stride, first, last, low, high, [&](int i, const T* from) { vectors[i] = load_vector<In, Load>(from); },
        [&](int i, const T* from, int begin, int end) { vectors[i] = load_part<In>(from, 1, begin, end); });
  }

  // Every element of the tile in shared memory is written.
  __device__ __forceinline__ void store(unsigned char* tile) {
    stored = past;
#pragma unroll
    for (int i = 0; i < SHARE; ++i)
      if (within(i)) store_vector<In>(place(tile, i), vectors[i]);
  }

  // Both at once: asynchronous copies, which are to be waited for.
  template <bool Whole>
  __device__ __forceinline__ void copy(unsigned char* tile, const T* p, long long stride, int first, int last, int low,
                                       int high) {
    each<Whole>(
        p, stride, first, last, low, high,
        [&](int i, const T* from) { ptx::cp_async<In * SIZE>(ptx::smem_address(place(tile, i)), from); },
        [&](int i, const T* from, int begin, int end) {
          if (within(i)) store_vector<In>(place(tile, i), load_part<In>(from, 1, begin, end));
        });
    stored = past;
  }

  // N elements of a row from a line on.
  template <int N, bool Any>
  __device__ __forceinline__ Vector<T, N> read(const unsigned char* tile, int row, int line) const {
    Vector<T, N> v;
#pragma unroll
    for (int i = 0; i < N; ++i)
      v[i] = reinterpret_cast<const T*>(tile + start(line + i))[past_of(line + i, stored) + row];
    return v;
  }
};
