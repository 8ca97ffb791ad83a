// Vectors of elements that move in one access where they fit in 16 bytes.

//: Bits
// An unsigned type of 1, 2, 4, 8 or 16 bytes.
template <int Bytes>
struct Bits;
template <>
struct Bits<1> {
  using Type = unsigned char;
};
template <>
struct Bits<2> {
  using Type = unsigned short;
};
template <>
struct Bits<4> {
  using Type = unsigned int;
};
template <>
struct Bits<8> {
  using Type = uint2;
};
template <>
struct Bits<16> {
  using Type = uint4;
};

//: Vector
// N elements of T in registers, moved in accesses of at most 16 bytes.
template <typename T, int N>
struct Vector {
  static constexpr int ACCESS = sizeof(T) * N < 16 ? sizeof(T) * N : 16;
  static constexpr int ACCESSES = sizeof(T) * N / ACCESS;
  using Access = typename Bits<ACCESS>::Type;
  Access access[ACCESSES];
  __device__ __forceinline__ T& operator[](int i) { return reinterpret_cast<T*>(access)[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return reinterpret_cast<const T*>(access)[i]; }
};

//: LoadPlain
// A load as any other.
struct LoadPlain {
  template <typename Access>
  static __device__ __forceinline__ Access from(const Access* p) {
    return *p;
  }
};

//: LoadNoAllocate
// A load that leaves no line in L1: of data that no thread writes and nobody reads again.
struct LoadNoAllocate {
  template <typename Access>
  static __device__ __forceinline__ Access from(const Access* p) {
    return ptx::load_no_allocate(p);
  }
};

//: LoadEvictLast
// A load whose lines L2 evicts after others.
struct LoadEvictLast {
  template <typename Access>
  static __device__ __forceinline__ Access from(const Access* p) {
    return ptx::load_evict_last(p);
  }
};

//: LoadStreaming
// A load whose lines L2 evicts before others.
struct LoadStreaming {
  template <typename Access>
  static __device__ __forceinline__ Access from(const Access* p) {
    return __ldcs(p);
  }
};

//: load_vector
// N elements from `p`, which is aligned to the access; with `remaining`, only that many where they are fewer, one by
// one and by plain loads.
template <int N, typename Load = LoadPlain, typename T>
__device__ __forceinline__ Vector<T, N> load_vector(const T* p, long long remaining = N) {
  Vector<T, N> v = {};
  if (remaining >= N) {
#pragma unroll
    for (int i = 0; i < v.ACCESSES; ++i)
      v.access[i] = Load::from(reinterpret_cast<const typename Vector<T, N>::Access*>(p) + i);
  } else if constexpr (sizeof(T) < 4 && sizeof(v) >= 4) {
    // In words: else whole vectors, too, would be taken apart here, and each load be waited for before the next.
    const auto* elements = reinterpret_cast<const typename Bits<sizeof(T)>::Type*>(p);
    unsigned words[sizeof(v) / 4] = {};
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < remaining) words[i * sizeof(T) / 4] |= static_cast<unsigned>(elements[i]) << i * sizeof(T) % 4 * 8;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(v) / 4); ++i) reinterpret_cast<unsigned*>(v.access)[i] = words[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < remaining) v[i] = p[i];
  }
  return v;
}

//: load_up_to
// The same, where many threads have nothing left: they branch past the loads one by one.
template <int N, typename Load = LoadPlain, typename T>
__device__ __forceinline__ Vector<T, N> load_up_to(const T* p, long long remaining) {
  return remaining > 0 ? load_vector<N, Load>(p, remaining) : Vector<T, N>();
}

//: load_strided
// N elements from `p`, `stride` apart; with `remaining`, only that many where they are fewer.
template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load_strided(const T* p, long long stride, long long remaining = N) {
  Vector<T, N> v = {};
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < remaining) v[i] = p[i * stride];
  return v;
}

//: Astride
// N elements at any address: the aligned accesses that they lie across, one more than aligned ones would take, and how
// far into these they begin. Of elements whose access is less than a word there is none (WORDS is 0).
template <typename T, int N>
struct Astride {
  using V = Vector<T, N>;
  using Access = typename V::Access;
  static constexpr int WORDS = sizeof(Access) / 4;
  static constexpr int ALL = WORDS > 0 ? (V::ACCESSES + 1) * WORDS : 1;
  const T* first;
  int bytes;

  __device__ __forceinline__ explicit Astride(const T* p)
      : bytes(static_cast<int>(reinterpret_cast<unsigned long long>(p) % sizeof(Access))) {
    first = p - bytes / static_cast<int>(sizeof(T));
  }
  // Whether the accesses lie within a row of `length`, of which the first element is number `column`.
  __device__ __forceinline__ bool within(int column, int length) const {
    const int start = column - bytes / static_cast<int>(sizeof(T));
    return start >= 0 && start + ALL * 4 / static_cast<int>(sizeof(T)) <= length;
  }
  __device__ __forceinline__ void load(unsigned (&words)[ALL]) const {
#pragma unroll
    for (int i = 0; i <= V::ACCESSES; ++i)
      reinterpret_cast<Access*>(words)[i] = reinterpret_cast<const Access*>(first)[i];
  }
  // The elements in what was loaded, moved by halves of an access, then by the bytes of a word.
  __device__ __forceinline__ V taken(unsigned (&words)[ALL]) const {
    V v;
#pragma unroll
    for (int step = WORDS / 2; step > 0; step /= 2)
#pragma unroll
      for (int i = 0; i + step < ALL; ++i) words[i] = bytes / 4 & step ? words[i + step] : words[i];
#pragma unroll
    for (int i = 0; i < ALL - WORDS; ++i)
      reinterpret_cast<unsigned*>(v.access)[i] =
          sizeof(T) < 4 ? __funnelshift_r(words[i], words[i + 1], bytes % 4 * 8) : words[i];
    return v;
  }
};

//: StorePlain
// A store as any other.
struct StorePlain {
  template <typename Access>
  static __device__ __forceinline__ void to(Access* p, const Access& value) {
    *p = value;
  }
};

//: StoreStreaming
// A store whose lines L2 evicts before others.
struct StoreStreaming {
  template <typename Access>
  static __device__ __forceinline__ void to(Access* p, const Access& value) {
    __stcs(p, value);
  }
};

//: StoreUnsplit
// A plain store as an intrinsic: the compiler leaves it as wide as it is, where of others it would make narrow ones.
struct StoreUnsplit {
  template <typename Access>
  static __device__ __forceinline__ void to(Access* p, const Access& value) {
    __stwb(p, value);
  }
};

//: store_vector
// N elements to `p`, which is aligned to the access; with `remaining`, only that many where they are fewer, one by one
// and by plain stores.
template <int N, typename Store = StorePlain, typename T>
__device__ __forceinline__ void store_vector(T* p, const Vector<T, N>& v, long long remaining = N) {
  if (remaining >= N) {
#pragma unroll
    for (int i = 0; i < v.ACCESSES; ++i)
      Store::to(reinterpret_cast<typename Vector<T, N>::Access*>(p) + i, v.access[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < remaining) p[i] = v[i];
  }
}

//: store_strided
// N elements to `p`, `stride` apart; with `remaining`, only that many where they are fewer.
template <int N, typename T>
__device__ __forceinline__ void store_strided(T* p, const Vector<T, N>& v, long long stride, long long remaining = N) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < remaining) p[i * stride] = v[i];
}

//: load_columns
// N elements from `p`, or `remaining` where they are fewer, by vectors where an address that is a multiple of Align
// bytes allows.
template <int N, int Align, typename T>
__device__ __forceinline__ Vector<T, N> load_columns(const T* p, int remaining) {
  if constexpr (Vector<T, N>::ACCESS <= Align) {
    return load_vector<N>(p, remaining);
  } else {
    return load_strided<N>(p, 1, remaining);
  }
}

//: store_columns
// N elements to `p`, or `remaining` where they are fewer, by vectors where an address that is a multiple of Align bytes
// allows.
template <int N, int Align, typename T>
__device__ __forceinline__ void store_columns(T* p, const Vector<T, N>& v, int remaining) {
  if constexpr (Vector<T, N>::ACCESS <= Align) {
    store_vector<N>(p, v, remaining);
  } else {
    store_strided<N>(p, v, 1, remaining);
  }
}

//: keep_packed
// Has vectors of narrow elements wait as they are for the next phase: the compiler would keep them as floats, in twice
// the registers.
template <typename T, int N, int Count>
__device__ __forceinline__ void keep_packed(Vector<T, N> (&vectors)[Count]) {
  static_assert(sizeof(Vector<T, N>) % 4 == 0, "vectors are made of words");
#pragma unroll
  for (int v = 0; v < Count; ++v)
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Vector<T, N>) / 4); ++i)
      ptx::renew(reinterpret_cast<unsigned*>(&vectors[v])[i]);
}

//: widen
// The elements of a vector as numbers of type To.
template <typename To, typename T, int N>
__device__ __forceinline__ void widen(To (&to)[N], const Vector<T, N>& from) {
#pragma unroll
  for (int e = 0; e < N; ++e) to[e] = static_cast<To>(from[e]);
}

//: widen_pairs
// As widen to float, two elements at once: a Pair is two of T.
template <typename Pair, typename T, int N>
__device__ __forceinline__ void widen_pairs(float (&to)[N], const Vector<T, N>& from) {
  if constexpr (N == 1) {
    to[0] = static_cast<float>(from[0]);
  } else {
#pragma unroll
    for (int e = 0; e < N; e += 2) {
      const float2 two = static_cast<float2>(reinterpret_cast<const Pair*>(from.access)[e / 2]);
      to[e] = two.x;
      to[e + 1] = two.y;
    }
  }
}

//: dot_bytes
// Adds the elements to `sum`, four in an instruction, or the products of two vectors' elements.
template <int N>
__device__ __forceinline__ int dot_bytes(const Vector<signed char, N>& these, int sum) {
#pragma unroll
  for (int q = 0; q < N / 4; ++q) sum = __dp4a(reinterpret_cast<const int*>(these.access)[q], 0x01010101, sum);
  return sum;
}
template <int N>
__device__ __forceinline__ int dot_bytes(const Vector<signed char, N>& these, const Vector<signed char, N>& those,
                                         int sum) {
#pragma unroll
  for (int q = 0; q < N / 4; ++q)
    sum = __dp4a(reinterpret_cast<const int*>(these.access)[q], reinterpret_cast<const int*>(those.access)[q], sum);
  return sum;
}

//: transpose_bytes
// Four rows of four bytes to four columns.
__device__ __forceinline__ void transpose_bytes(int (&to)[4], unsigned row0, unsigned row1, unsigned row2,
                                                unsigned row3) {
  const unsigned low01 = __byte_perm(row0, row1, 0x5140), low23 = __byte_perm(row2, row3, 0x5140);
  const unsigned high01 = __byte_perm(row0, row1, 0x7362), high23 = __byte_perm(row2, row3, 0x7362);
  to[0] = static_cast<int>(__byte_perm(low01, low23, 0x5410));
  to[1] = static_cast<int>(__byte_perm(low01, low23, 0x7632));
  to[2] = static_cast<int>(__byte_perm(high01, high23, 0x5410));
  to[3] = static_cast<int>(__byte_perm(high01, high23, 0x7632));
}
