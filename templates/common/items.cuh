// The vectors that a thread has in flight, and the blocks that go over all of them.

//: ThreadItems
// Items vectors of a thread, Shared neighbours of which have one place; the places of Threads threads follow each
// other.
template <int Items, int Shared, int Threads>
struct ThreadItems {
  static constexpr int PLACES = Items / Shared;
  static constexpr int SPAN = Threads * PLACES;  // places of a block

  // f(i, number of its place) for every item i whose place is one of `count`, of which this thread's first is `first`.
  template <int Step = 1, typename Index, typename F>
  static __device__ __forceinline__ void for_each(Index first, Index count, F f) {
    if constexpr (PLACES == 1) {
      if (first < count) {
#pragma unroll
        for (int i = 0; i < Items; i += Step) f(i, first);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Items; i += Step) {
        const Index number = first + i / Shared * Threads;
        if (number < count) f(i, number);
      }
    }
  }
  // The same for the first item of every place.
  template <typename Index, typename F>
  static __device__ __forceinline__ void for_each_place(Index first, Index count, F f) {
    for_each<Shared>(first, count, f);
  }
};

//: OnePass
// The grid covers all of `count` at once: f(the first of this block's Span).
template <int Span>
struct OnePass {
  template <typename Index, typename F>
  static __device__ __forceinline__ void for_each(Index, F f) {
    f(static_cast<Index>(blockIdx.x) * Span);
  }
};

//: GridStride
// A block takes every gridDim.x-th Span of `count`: f(its first) for each.
template <int Span>
struct GridStride {
  template <typename Index, typename F>
  static __device__ __forceinline__ void for_each(Index count, F f) {
    const Index stride = static_cast<Index>(gridDim.x) * Span;
    for (Index start = static_cast<Index>(blockIdx.x) * Span; start < count; start += stride) f(start);
  }
};
