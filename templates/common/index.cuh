// Places in tensors: from the number of an element to its indices, and from these to an address.

//: divided
// n / size, exact for n below 2^32 - 1 and size below 2^31, by `inverse` = (2^63 - 1) / size: products where a division
// takes some twenty instructions. The quotient of n + 1 by the inverse is too small by at most (n + 1) / 2^63, which is
// less than the 1 / size that was added (Robison, "N-bit unsigned division via N-bit multiply-add", 2005).
__device__ __forceinline__ unsigned divided(unsigned n, long long inverse) {
  const unsigned long long twice = 2ull * inverse;
  const unsigned high = static_cast<unsigned>(twice >> 32), low = static_cast<unsigned>(twice), next = n + 1;
  return static_cast<unsigned>((static_cast<unsigned long long>(next) * high + __umulhi(next, low)) >> 32);
}

//: steps
// index * stride in 64 bits. Of two ints in one instruction: the compiler makes four of it where it knows their signs.
__device__ __forceinline__ long long steps(int index, int stride) { return ptx::multiply_wide(index, stride); }
template <typename Index, typename Stride>
__device__ __forceinline__ long long steps(Index index, Stride stride) {
  return static_cast<long long>(index) * stride;
}

//: Divisor
// A size, to divide numbers by.
template <typename Index>
struct Divisor {
  Index size;
  __device__ __forceinline__ explicit Divisor(Index size) : size(size) {}
  __device__ __forceinline__ Index quotient(Index n) const { return n / size; }
};

//: FastDivisor
// A size below 2^31, to divide numbers of 32 bits by; its inverse is that of `divided`.
struct FastDivisor {
  unsigned size;
  long long inverse;
  __device__ __forceinline__ FastDivisor(unsigned size, long long inverse) : size(size), inverse(inverse) {}
  __device__ __forceinline__ unsigned quotient(unsigned n) const { return divided(n, inverse); }
};

//: unravel
// The indices of element `number`, row by row: the innermost, the size of its axis, and so on; the last is what is
// left.
template <typename Number, typename Index>
__device__ __forceinline__ void unravel(Number number, Index& outermost) {
  outermost = static_cast<Index>(number);
}
template <typename Number, typename Index, typename Over, typename... Outer>
__device__ __forceinline__ void unravel(Number number, Index& index, const Over& over, Outer&&... outer) {
  const Number rest = over.quotient(number);
  index = static_cast<Index>(number - rest * over.size);
  unravel(rest, outer...);
}

//: advance
// Moves the indices of an element on to the next one, row by row: the innermost, the size of its axis, and so on.
template <typename Index>
__device__ __forceinline__ void advance(Index& outermost) {
  ++outermost;
}
template <typename Index, typename Size, typename... Outer>
__device__ __forceinline__ void advance(Index& index, Size size, Outer&... outer) {
  if (++index == size) {
    index = 0;
    advance(outer...);
  }
}
