// Warp-wide matrix multiply-accumulate: d += a * b, with a of M x K row-major and b of K x N column-major fragments.
// With g = lane / 4 and t = lane % 4, and P elements packed in a register: a[0], a[1] are rows g and g+8 at k = P*t..,
// a[2], a[3] the same rows half of K further; b[0], b[1] are column g at k = P*t.. and half of K further; d[0], d[1]
// are row g at columns 2t and 2t+1, d[2], d[3] row g+8 (two to a register for f16). Source: PTX ISA, "Matrix Fragments
// for mma".

//: mma_m16n8k8_f16_f32
// f16 operands, f32 accumulator (sm_75 and above).
__device__ __forceinline__ void mma_m16n8k8_f16_f32(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

//: mma_m16n8k8_f16_f16
// f16 operands, f16 accumulator (sm_75 and above).
__device__ __forceinline__ void mma_m16n8k8_f16_f16(unsigned (&d)[2], const unsigned (&a)[2], const unsigned (&b)[1]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 "
      "{%0, %1}, {%2, %3}, {%4}, {%0, %1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

//: mma_m16n8k16_f16_f32
// f16 operands, f32 accumulator (sm_80 and above).
__device__ __forceinline__ void mma_m16n8k16_f16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//: mma_m16n8k16_f16_f16
// f16 operands, f16 accumulator (sm_80 and above).
__device__ __forceinline__ void mma_m16n8k16_f16_f16(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
      "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//: mma_m16n8k16_bf16_f32
// bf16 operands, f32 accumulator (sm_80 and above).
__device__ __forceinline__ void mma_m16n8k16_bf16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//: mma_m16n8k8_tf32_f32
// tf32 operands (round with to_tf32 first), f32 accumulator (sm_80 and above).
__device__ __forceinline__ void mma_m16n8k8_tf32_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//: mma_m16n8k32_s8_s32
// i8 operands, i32 accumulator (sm_80 and above).
__device__ __forceinline__ void mma_m16n8k32_s8_s32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//: mma_m16n8k32_e4m3_f32
// fp8 e4m3 operands, f32 accumulator (sm_89 and above).
__device__ __forceinline__ void mma_m16n8k32_e4m3_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//: mma_m16n8k32_e5m2_f32
// fp8 e5m2 operands, f32 accumulator (sm_89 and above).
__device__ __forceinline__ void mma_m16n8k32_e5m2_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//: to_tf32
// An f32 rounded to the nearest tf32, as the operand of an mma: ties to even on sm_90 and above, where it is one
// instruction, away from zero before (sm_80 and above).
__device__ __forceinline__ unsigned to_tf32(float x) {
  unsigned r;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
#endif
  return r;
}
