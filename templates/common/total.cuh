// Totals that blocks make together in words of global memory, which are 0 before and after: by atomics, and of the same
// bits in whatever order these come. Sums are of integers.

//: ordered_key
// A value as an unsigned number, in the values' order, NaN above all. 0, where a total begins, is the least integer's.
__device__ __forceinline__ unsigned ordered_key(int v) { return static_cast<unsigned>(v) ^ 0x80000000u; }
__device__ __forceinline__ unsigned ordered_key(float v) {
  const unsigned bits = __float_as_uint(v);
  return v != v ? ~0u : bits ^ (bits >> 31 ? ~0u : 0x80000000u);
}
__device__ __forceinline__ unsigned long long ordered_key(long long v) {
  return static_cast<unsigned long long>(v) ^ 0x8000000000000000ull;
}
__device__ __forceinline__ unsigned long long ordered_key(double v) {
  const unsigned long long bits = __double_as_longlong(v);
  return v != v ? ~0ull : bits ^ (bits >> 63 ? ~0ull : 0x8000000000000000ull);
}

//: from_ordered_key
// The value whose place among its type's `ordered_key` gives.
__device__ __forceinline__ void from_ordered_key(unsigned key, int& v) { v = static_cast<int>(key ^ 0x80000000u); }
__device__ __forceinline__ void from_ordered_key(unsigned key, float& v) {
  v = __uint_as_float(key ^ (key >> 31 ? 0x80000000u : ~0u));
}
__device__ __forceinline__ void from_ordered_key(unsigned long long key, long long& v) {
  v = static_cast<long long>(key ^ 0x8000000000000000ull);
}
__device__ __forceinline__ void from_ordered_key(unsigned long long key, double& v) {
  v = __longlong_as_double(static_cast<long long>(key ^ (key >> 63 ? 0x8000000000000000ull : ~0ull)));
}

//: reverse_order
// A value whose order among values is reversed: the largest is that of the smallest.
__device__ __forceinline__ int reverse_order(int v) { return ~v; }
__device__ __forceinline__ long long reverse_order(long long v) { return ~v; }
__device__ __forceinline__ float reverse_order(float v) { return -v; }
__device__ __forceinline__ double reverse_order(double v) { return -v; }

//: word_of
// A total as the unsigned word that atomics take.
__device__ __forceinline__ unsigned* word_of(int* total) { return reinterpret_cast<unsigned*>(total); }
__device__ __forceinline__ unsigned long long* word_of(long long* total) {
  return reinterpret_cast<unsigned long long*>(total);
}

//: give_sum
// Adds to a total.
template <typename T>
__device__ __forceinline__ void give_sum(T* total, T v) {
  atomicAdd(word_of(total), v);
}

//: take_sum
// What was added, and the total is 0 again.
template <typename T>
__device__ __forceinline__ void take_sum(T* total, T& v) {
  v = static_cast<T>(atomicExch(word_of(total), 0));
}

//: give_max
// Makes a total the larger of it and a value; NaN where either is.
template <typename Word, typename T>
__device__ __forceinline__ void give_max(Word* total, T v) {
  atomicMax(word_of(total), ordered_key(v));
}

//: take_max
// The largest that was given, and the total is 0 again.
template <typename Word, typename T>
__device__ __forceinline__ void take_max(Word* total, T& v) {
  from_ordered_key(atomicExch(word_of(total), 0), v);
}

//: give_min
// Makes a total the smaller of it and a value; NaN where either is.
template <typename Word, typename T>
__device__ __forceinline__ void give_min(Word* total, T v) {
  atomicMax(word_of(total), ordered_key(reverse_order(v)));
}

//: take_min
// The smallest that was given, and the total is 0 again.
template <typename Word, typename T>
__device__ __forceinline__ void take_min(Word* total, T& v) {
  from_ordered_key(atomicExch(word_of(total), 0), v);
  v = reverse_order(v);
}
