// Global and shared memory accesses that CUDA C++ has no spelling for.

//: smem_address
// The 32-bit shared-memory address that PTX instructions take, of a generic pointer into shared memory.
__device__ __forceinline__ unsigned smem_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

//: load_no_allocate
// Read-only load that leaves no line in L1: for data that a kernel reads once. 1, 2, 4, 8 or 16 bytes, aligned to their
// size.
__device__ __forceinline__ unsigned char load_no_allocate(const unsigned char* p) {
  unsigned short v;
  asm volatile("ld.global.nc.L1::no_allocate.u8 %0, [%1];" : "=h"(v) : "l"(p));
  return static_cast<unsigned char>(v);
}
__device__ __forceinline__ unsigned short load_no_allocate(const unsigned short* p) {
  unsigned short v;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ unsigned int load_no_allocate(const unsigned int* p) {
  unsigned int v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_no_allocate(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ uint4 load_no_allocate(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

//: policy_evict_last
// The cache policy of lines that L2 evicts after others. Source: PTX ISA, "createpolicy".
__device__ __forceinline__ unsigned long long policy_evict_last() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

//: load_evict_last
// Load whose line L2 evicts after others. 1, 2, 4, 8 or 16 bytes, aligned to their size.
__device__ __forceinline__ unsigned char load_evict_last(const unsigned char* p) {
  unsigned short v;
  asm volatile("ld.global.L2::cache_hint.u8 %0, [%1], %2;" : "=h"(v) : "l"(p), "l"(policy_evict_last()));
  return static_cast<unsigned char>(v);
}
__device__ __forceinline__ unsigned short load_evict_last(const unsigned short* p) {
  unsigned short v;
  asm volatile("ld.global.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(v) : "l"(p), "l"(policy_evict_last()));
  return v;
}
__device__ __forceinline__ unsigned int load_evict_last(const unsigned int* p) {
  unsigned int v;
  asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(policy_evict_last()));
  return v;
}
__device__ __forceinline__ uint2 load_evict_last(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p), "l"(policy_evict_last()));
  return v;
}
__device__ __forceinline__ uint4 load_evict_last(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy_evict_last()));
  return v;
}

//: load_relaxed
// Loads a word that other threads change by atomics meanwhile: one of its values, which says nothing of other memory.
__device__ __forceinline__ unsigned load_relaxed(const unsigned* p) {
  unsigned v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

//: load_acquire
// Loads a flag that another block stores with store_release or adds to with atomic_add_release: what it wrote before is
// then seen.
__device__ __forceinline__ int load_acquire(const int* p) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

//: store_release
// Stores a flag after all that this thread wrote before.
__device__ __forceinline__ void store_release(int* p, int v) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

//: atomic_add_release
// Adds to a flag after all that this thread wrote before, and returns what it was.
__device__ __forceinline__ int atomic_add_release(int* p, int v) {
  int before;
  asm volatile("atom.add.release.gpu.global.s32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
}

//: wait_for
// Waits until the flag has the value, and sees what was written before it was stored.
__device__ __forceinline__ void wait_for(const int* p, int value) {
  while (load_acquire(p) != value) __nanosleep(20);
}
