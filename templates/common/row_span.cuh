// The rows of a block as one span of memory, which lies in shared memory while they are computed.

//: fetch_span
// Sends for `elements` of a span, by vectors of 16 bytes at multiples of that; the place is filled up with 0 to `room`.
template <int Threads, typename T>
__device__ __forceinline__ void fetch_span(unsigned char* place, const T* span, int elements, int room) {
  constexpr int PACK = 16 / sizeof(T);
  for (int at = threadIdx.x * PACK; at < room; at += Threads * PACK) {
    const int valid = min(max(elements - at, 0), PACK) * static_cast<int>(sizeof(T));
    ptx::cp_async<16>(ptx::smem_address(place) + at * static_cast<int>(sizeof(T)), span + at, valid);
  }
}

//: store_span
// Stores `elements` of a span that begins at a multiple of 16 bytes.
template <int Threads, typename T>
__device__ __forceinline__ void store_span(T* span, const unsigned char* place, int elements) {
  constexpr int PACK = 16 / sizeof(T);
  const T* const from = reinterpret_cast<const T*>(place);
  for (int at = threadIdx.x * PACK; at < elements; at += Threads * PACK)
    store_vector<PACK>(span + at, load_vector<PACK>(from + at, elements - at), elements - at);
}
