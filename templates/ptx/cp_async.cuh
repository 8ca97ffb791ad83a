// Asynchronous copies from global to shared memory (sm_80 and above).

//: cp_async
// Copies `valid` bytes (0..Bytes) from global memory to shared memory and fills the rest of `Bytes` with zeros.
// Bytes is 4, 8 or 16; both addresses are aligned to it. Where `valid` is 0, `source` is not read. All sizes go through
// L1 (.ca): on an H200 16-byte copies that bypass it (.cg) reach 4.2 TB/s from L2, these 9.8 TB/s
// (docs/notes/gemm_mma.md).
template <int Bytes>
__device__ __forceinline__ void cp_async(unsigned destination, const void* source, int valid) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(source), "n"(Bytes), "r"(valid)
               : "memory");
}
// Copies all `Bytes`.
template <int Bytes>
__device__ __forceinline__ void cp_async(unsigned destination, const void* source) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(destination), "l"(source), "n"(Bytes) : "memory");
}

//: cp_async_commit
// Closes the group of the copies this thread has issued since the last commit.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

//: cp_async_wait
// Waits until at most `Pending` of this thread's groups are still under way.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
