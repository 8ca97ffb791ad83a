// Random numbers that follow from a key and a position alone: Philox4x32-10 (Salmon et al., 2011).

//: philox
// Four random words for a counter, whose upper 64 bits are zero, under a key.
__device__ __forceinline__ uint4 philox(unsigned long long counter, unsigned long long key) {
  uint4 x = make_uint4(static_cast<unsigned>(counter), static_cast<unsigned>(counter >> 32), 0, 0);
  unsigned low_key = static_cast<unsigned>(key), high_key = static_cast<unsigned>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    x = make_uint4(__umulhi(0xCD9E8D57u, x.z) ^ x.y ^ low_key, 0xCD9E8D57u * x.z,
                   __umulhi(0xD2511F53u, x.x) ^ x.w ^ high_key, 0xD2511F53u * x.x);
    low_key += 0x9E3779B9u;
    high_key += 0xBB67AE85u;
  }
  return x;
}

//: random_vector
// Uniform numbers in [0, 1) for N elements from number `first` on, a multiple of both N and Align unless Align is 1:
// word i % 4 of block offset + i / 4, its upper 24 bits. Four neighbours share a block.
template <int N, int Align>
__device__ __forceinline__ Vector<float, N> random_vector(long long first, long long seed, long long offset) {
  Vector<float, N> v;
  uint4 words = {};
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const unsigned long long i = static_cast<unsigned long long>(first) + e;
    const int at = Align % 4 == 0 && N % 4 == 0 ? e % 4 : static_cast<int>(i % 4);
    if (e == 0 || at == 0) words = philox(static_cast<unsigned long long>(offset) + i / 4, seed);
    const unsigned word = at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w;
    v[e] = static_cast<float>(word >> 8) * 0x1p-24f;
  }
  return v;
}
