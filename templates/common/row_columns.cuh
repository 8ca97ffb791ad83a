// The columns of a row at which a thread has vectors, and vectors of a row in shared memory.

//: RowColumns
// The columns of a row at which a thread has vectors: Vectors of them, Step columns apart. Whole: these are all in the
// row. `for_each` calls f(v, column) for those of a tile of the row.
template <int Vectors, int Step, bool Whole>
struct RowColumns {
  int first, length;
  template <typename F>
  __device__ __forceinline__ void for_each(int tile, const F& f) const {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const int column = tile + first + v * Step;
      if (Whole || column < length) f(v, column);
    }
  }
};

//: FilledColumns
// As RowColumns, where of a thread's vectors none but the last may lie beyond the row.
template <int Vectors, int Step>
struct FilledColumns {
  int first, length;
  template <typename F>
  __device__ __forceinline__ void for_each(int tile, const F& f) const {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const int column = tile + first + v * Step;
      if (v < Vectors - 1 || column < length) f(v, column);
    }
  }
};

//: RowColumnsByFour
// The columns of a row at which a thread has vectors, as RowColumns, with four of these in registers at a time.
template <int Vectors, int Step, bool Whole>
struct RowColumnsByFour {
  int first, length;
  template <typename F>
  __device__ __forceinline__ void for_each(int tile, const F& f) const {
#pragma unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const int column = tile + first + v * Step;
      if (Whole || column < length) f(v, column);
    }
  }
};

//: RowWidth
// A vector's number of elements, as the argument of a generic lambda.
template <int N>
struct RowWidth {
  static constexpr int value = N;
};

//: ShiftedColumns
// The columns of a row at which a thread has vectors, of rows whose vectors begin after `head` elements, where memory
// is aligned: Vectors of them, Step columns apart. Of the elements before and after them each thread has one at most,
// which comes last, as a vector of 1; where the row is Tiled, with its last tile.
template <int Vectors, int Step, int Pack, bool Tiled>
struct ShiftedColumns {
  int begin, end, edge, length;
  __device__ __forceinline__ ShiftedColumns(int first, int head, int length)
      : begin(head + first), end(head + (length - head) / Pack * Pack), length(length) {
    edge = first / Pack + (first / Pack < head ? 0 : end - head);
  }
  template <typename F>
  __device__ __forceinline__ void for_each(int tile, const F& f) const {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const int column = tile + begin + v * Step;
      if (column < end) f(RowWidth<Pack>(), v, column);
    }
    if (edge < length && (!Tiled || tile + Vectors * Step >= length)) f(RowWidth<1>(), 0, edge);
  }
};

//: vector_or_edge
// The one of two that is of N elements.
template <int N, typename V, typename Edge>
__device__ __forceinline__ auto& vector_or_edge(V& vector, Edge& edge) {
  if constexpr (N == 1) {
    return edge;
  } else {
    return vector;
  }
}

//: staged_vector
// Vector number `v` of those that lie from `stage` on in shared memory.
template <typename T, int N>
__device__ __forceinline__ Vector<T, N> staged_vector(const unsigned char* stage, int v) {
  return load_vector<N>(reinterpret_cast<const T*>(stage) + v * N);
}

//: stage_vector
// Sends for it, from `p`; where only `remaining` elements are left there, the others become 0.
template <int N, typename T>
__device__ __forceinline__ void stage_vector(unsigned char* stage, int v, const T* p) {
  constexpr int BYTES = N * sizeof(T);
  ptx::cp_async<BYTES>(ptx::smem_address(stage) + v * BYTES, p);
}
template <int N, typename T>
__device__ __forceinline__ void stage_vector(unsigned char* stage, int v, const T* p, int remaining) {
  constexpr int BYTES = N * sizeof(T);
  ptx::cp_async<BYTES>(ptx::smem_address(stage) + v * BYTES, p, min(remaining, N) * static_cast<int>(sizeof(T)));
}
