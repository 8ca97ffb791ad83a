// Functions of a float that are shorter than CUDA's own.

//: erfc_approximate
// 1 - erf(x): relative error 2^-21 for x below 1, 2^-19 below 4 and 2^-17 beyond; 0 where it is below 2^-126. With
// t = 1 / (1 + 0.4 |x|) it is e^(-x^2) t P(t) of a polynomial P that was fitted to relative error 2^-24.
__device__ __forceinline__ float erfc_approximate(float x) {
  const float t = ptx::reciprocal_approximate(1.0f + 0.4f * fabsf(x));
  float sum = 0.040475246f;
  sum = sum * t - 0.13649553f;
  sum = sum * t + 0.075991854f;
  sum = sum * t + 0.09722856f;
  sum = sum * t + 0.07326822f;
  sum = sum * t + 0.19619805f;
  sum = sum * t + 0.20115866f;
  sum = sum * t + 0.22654699f;
  sum = sum * t + 0.22562803f;
  const float tail = ptx::exp_approximate(-x * x) * (sum * t);
  return x < 0 ? 2.0f - tail : tail;
}

//: erfc_short
// 1 - erf(x) for 16 bits: relative error 2^-16 for x below 4.3 and 2^-12 beyond, where halves end; 0 where it is below
// 2^-126. e to the power of a polynomial that was fitted to log(erfc) in [0, 10] and falls everywhere.
__device__ __forceinline__ float erfc_short(float x) {
  const float u = fabsf(x);
  float power = -3.1177311e-8f;
  power = power * u + 1.6154519e-6f;
  power = power * u - 3.6616366e-5f;
  power = power * u + 0.00048097438f;
  power = power * u - 0.0041062923f;
  power = power * u + 0.024385113f;
  power = power * u - 0.10645755f;
  power = power * u - 0.63537861f;
  power = power * u - 1.1285045f;
  const float tail = ptx::exp_approximate(power * u);
  return x < 0 ? 2.0f - tail : tail;
}

//: expm1_short
// e to the x, less 1, for 16 bits: relative error 2^-18. Near 0, where the difference cancels, four terms of the
// series.
__device__ __forceinline__ float expm1_short(float x) {
  float series = x * 0.041666668f + 0.16666667f;
  series = series * x + 0.5f;
  series = series * x + 1.0f;
  return fabsf(x) < 0.125f ? x * series : ptx::exp_approximate(x) - 1.0f;
}

//: tanh_short
// The hyperbolic tangent for 16 bits, without a branch: relative error 2^-20. Near 0, where the difference cancels,
// four terms of the series.
__device__ __forceinline__ float tanh_short(float x) {
  const float square = x * x;
  float series = square * -0.053968254f + 0.13333334f;
  series = series * square - 0.33333334f;
  series = series * square + 1.0f;
  const float beyond = ptx::reciprocal_approximate(1.0f + ptx::exp2_approximate(2.8853900817779268f * x));
  return fabsf(x) < 0.25f ? x * series : 1.0f - 2.0f * beyond;
}

//: reciprocal_short
// 1 / x of normal numbers of which that is normal too, and of NaN: as 1.0f / x has it, without the branch for all
// others.
__device__ __forceinline__ float reciprocal_short(float x) {
  const float share = ptx::reciprocal_approximate(x);
  return fmaf(fmaf(-x, share, 1.0f), share, share);
}

//: divide_short
// x / divisor for whole numbers from 1 to 2^24, without a division's branch; its digits where the result is normal.
__device__ __forceinline__ float divide_short(float x, float divisor) {
  const float share = reciprocal_short(divisor), quotient = x * share;
  const float nearest = fmaf(fmaf(-quotient, divisor, x), share, quotient);
  return fabsf(quotient) < __int_as_float(0x7f800000) ? nearest : quotient;  // what is left of infinity is NaN
}

//: exp2_polynomial
// 2 to the x by additions and multiplications: relative error 2^-13.7, 0 below 2^-126, NaN of NaN. Of the nearest
// integer and what is left a power of two and a polynomial, which was fitted to relative error.
__device__ __forceinline__ float exp2_polynomial(float x) {
  constexpr float WHOLE = 12582912.0f;  // added to a number it leaves an integer in the last bits
  x = ptx::max_nan(x, -127.0f);
  const float shifted = x + WHOLE;
  const float left = x - (shifted - WHOLE);
  float sum = 0.05517167f;
  sum = sum * left + 0.24261114f;
  sum = sum * left + 0.69326097f;
  sum = sum * left + 0.99992806f;
  return sum * __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
}
