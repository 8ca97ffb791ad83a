// Additions to global memory that return nothing, several elements at once. Each element is added by itself, as a whole
// vector is not one atomic operation. Source: PTX ISA, red (vector types).

//: red_add_f32
// Adds 2 or 4 floats; `p` is aligned to all of them. Subnormal sums become zero. sm_90.
template <int N>
__device__ __forceinline__ void red_add_f32(float* p, const float (&v)[N]) {
  static_assert(N == 2 || N == 4, "red adds 2 or 4 floats");
  if constexpr (N == 2) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(v[0]), "f"(v[1]) : "memory");
  } else {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
  }
}

//: red_add_f16x2
// Adds 1, 2 or 4 pairs of halves; `p` is aligned to all of them. sm_90.
template <int N>
__device__ __forceinline__ void red_add_f16x2(void* p, const unsigned (&v)[N]) {
  static_assert(N == 1 || N == 2 || N == 4, "red adds 1, 2 or 4 pairs");
  if constexpr (N == 1) {
    asm volatile("red.relaxed.gpu.global.add.noftz.f16x2 [%0], %1;" ::"l"(p), "r"(v[0]) : "memory");
  } else if constexpr (N == 2) {
    asm volatile("red.relaxed.gpu.global.add.noftz.v2.f16x2 [%0], {%1, %2};" ::"l"(p), "r"(v[0]), "r"(v[1]) : "memory");
  } else {
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
  }
}

//: red_add_bf16x2
// Adds 1, 2 or 4 pairs of bfloats; `p` is aligned to all of them. sm_90.
template <int N>
__device__ __forceinline__ void red_add_bf16x2(void* p, const unsigned (&v)[N]) {
  static_assert(N == 1 || N == 2 || N == 4, "red adds 1, 2 or 4 pairs");
  if constexpr (N == 1) {
    asm volatile("red.relaxed.gpu.global.add.noftz.bf16x2 [%0], %1;" ::"l"(p), "r"(v[0]) : "memory");
  } else if constexpr (N == 2) {
    asm volatile("red.relaxed.gpu.global.add.noftz.v2.bf16x2 [%0], {%1, %2};" ::"l"(p), "r"(v[0]), "r"(v[1])
                 : "memory");
  } else {
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
  }
}
