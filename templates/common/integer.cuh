// Division of integers, rounded down.

//: floor_divide
// a / b rounded down, where C++ rounds towards zero; b is not 0.
template <typename T>
__device__ __forceinline__ T floor_divide(T a, T b) {
  const T quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

//: floor_remainder
// What a / b, rounded down, leaves of a: 0, or of b's sign; b is not 0.
template <typename T>
__device__ __forceinline__ T floor_remainder(T a, T b) {
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
