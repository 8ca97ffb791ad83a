// The PTX layer in C++: the functions of templates/ptx/*.cuh with the same names, signatures and meaning.
#pragma once

namespace emu {

template <int N>
EMU_INLINE void unpack(unsigned (&r)[N], EmuWords words) {
  r[0] = unsigned(words.low);
  if constexpr (N > 1) r[1] = unsigned(words.low >> 32);
  if constexpr (N > 2) r[2] = unsigned(words.high);
  if constexpr (N > 3) r[3] = unsigned(words.high >> 32);
}

// d of any 4-byte element type, a and b packed in registers.
template <EmuMma Kind, class Element, int D, int A, int B>
EMU_INLINE void mma(Element (&d)[D], const unsigned (&a)[A], const unsigned (&b)[B]) {
  static_assert(sizeof(Element) == 4 && (D == 2 || D == 4) && (A == 2 || A == 4) && (B == 1 || B == 2),
                "mma fragments");
  EmuWords words = emu_mma(Kind, a[0], a[1], A > 2 ? a[A - 2] : 0, A > 2 ? a[A - 1] : 0, b[0], B > 1 ? b[B - 1] : 0,
                           bit_cast<unsigned>(d[0]), bit_cast<unsigned>(d[1]), D > 2 ? bit_cast<unsigned>(d[D - 2]) : 0,
                           D > 2 ? bit_cast<unsigned>(d[D - 1]) : 0);
  d[0] = bit_cast<Element>(unsigned(words.low));
  d[1] = bit_cast<Element>(unsigned(words.low >> 32));
  if constexpr (D > 2) {
    d[2] = bit_cast<Element>(unsigned(words.high));
    d[3] = bit_cast<Element>(unsigned(words.high >> 32));
  }
}

}  // namespace emu

namespace ptx {

EMU_INLINE unsigned smem_address(const void* pointer) { return emu_shared_address(pointer); }

EMU_INLINE unsigned char load_no_allocate(const unsigned char* p) { return *p; }
EMU_INLINE unsigned short load_no_allocate(const unsigned short* p) { return *p; }
EMU_INLINE unsigned int load_no_allocate(const unsigned int* p) { return *p; }
EMU_INLINE uint2 load_no_allocate(const uint2* p) { return *p; }
EMU_INLINE uint4 load_no_allocate(const uint4* p) { return *p; }

EMU_INLINE long long multiply_wide(int a, int b) { return static_cast<long long>(a) * b; }
EMU_INLINE unsigned long long policy_evict_last() { return 0; }
EMU_INLINE unsigned char load_evict_last(const unsigned char* p) { return *p; }
EMU_INLINE unsigned short load_evict_last(const unsigned short* p) { return *p; }
EMU_INLINE unsigned int load_evict_last(const unsigned int* p) { return *p; }
EMU_INLINE uint2 load_evict_last(const uint2* p) { return *p; }
EMU_INLINE uint4 load_evict_last(const uint4* p) { return *p; }

EMU_INLINE float max_nan(float a, float b) { return a > b || a != a ? a : b; }
EMU_INLINE int reduce_min(int x) { return __reduce_min_sync(0xffffffff, x); }
EMU_INLINE int reduce_max(int x) { return __reduce_max_sync(0xffffffff, x); }
EMU_INLINE void renew(unsigned&) {}
EMU_INLINE float exp_approximate(float x) {
  const float power = expf(x);
  return power < 0x1p-126f ? 0.0f : power;  // NaN stays
}
EMU_INLINE float exp2_approximate(float x) {
  const float power = exp2f(x);
  return power < 0x1p-126f ? 0.0f : power;  // NaN stays
}
EMU_INLINE float reciprocal_approximate(float x) {
  const float share = 1 / x;
  return fabsf(share) < 0x1p-126f ? 0.0f : share;
}
EMU_INLINE float sigmoid_approximate(float x) {
  const float share = 1 / (1 + expf(-x));
  return share < 0x1p-126f ? 0.0f : share;
}
EMU_INLINE float min_nan(float a, float b) { return a < b || a != a ? a : b; }

template <int Bytes>
EMU_INLINE void cp_async(unsigned destination, const void* source, int valid = Bytes) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  emu_cp_async(destination, source, Bytes, valid);
}
EMU_INLINE void cp_async_commit() { emu_cp_async_commit(); }
template <int Pending>
EMU_INLINE void cp_async_wait() {
  emu_cp_async_wait(Pending);
}

template <int N>
EMU_INLINE void ldmatrix(unsigned (&r)[N], unsigned address) {
  static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");
  emu::unpack(r, emu_ldmatrix(N, 0, address));
}
template <int N>
EMU_INLINE void ldmatrix_trans(unsigned (&r)[N], unsigned address) {
  static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");
  emu::unpack(r, emu_ldmatrix(N, 1, address));
}
template <int N>
EMU_INLINE void stmatrix(unsigned address, const unsigned (&r)[N]) {
  static_assert(N == 1 || N == 2 || N == 4, "stmatrix stores 1, 2 or 4 matrices");
  emu_stmatrix(N, 0, address, r[0], N > 1 ? r[N > 1] : 0, N > 2 ? r[N > 2 ? 2 : 0] : 0, N > 3 ? r[N > 3 ? 3 : 0] : 0);
}
template <int N>
EMU_INLINE void stmatrix_trans(unsigned address, const unsigned (&r)[N]) {
  static_assert(N == 1 || N == 2 || N == 4, "stmatrix stores 1, 2 or 4 matrices");
  emu_stmatrix(N, 1, address, r[0], N > 1 ? r[N > 1] : 0, N > 2 ? r[N > 2 ? 2 : 0] : 0, N > 3 ? r[N > 3 ? 3 : 0] : 0);
}

EMU_INLINE void mma_m16n8k8_f16_f32(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
  emu::mma<EMU_MMA_K8_F16_F32>(d, a, b);
}
EMU_INLINE void mma_m16n8k8_f16_f16(unsigned (&d)[2], const unsigned (&a)[2], const unsigned (&b)[1]) {
  emu::mma<EMU_MMA_K8_F16_F16>(d, a, b);
}
EMU_INLINE void mma_m16n8k16_f16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emu::mma<EMU_MMA_K16_F16_F32>(d, a, b);
}
EMU_INLINE void mma_m16n8k16_f16_f16(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emu::mma<EMU_MMA_K16_F16_F16>(d, a, b);
}
EMU_INLINE void mma_m16n8k16_bf16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emu::mma<EMU_MMA_K16_BF16_F32>(d, a, b);
}
EMU_INLINE void mma_m16n8k8_tf32_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emu::mma<EMU_MMA_K8_TF32_F32>(d, a, b);
}
EMU_INLINE void mma_m16n8k32_s8_s32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emu::mma<EMU_MMA_K32_S8_S32>(d, a, b);
}
EMU_INLINE void mma_m16n8k32_e4m3_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emu::mma<EMU_MMA_K32_E4M3_F32>(d, a, b);
}
EMU_INLINE void mma_m16n8k32_e5m2_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emu::mma<EMU_MMA_K32_E5M2_F32>(d, a, b);
}

EMU_INLINE unsigned to_tf32(float x) { return emu::round_to_tf32(emu::bit_cast<unsigned>(x)); }

}  // namespace ptx
