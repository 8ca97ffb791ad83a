// Around wgmma, the matrix multiply-accumulate of a warpgroup (four warps, sm_90a). The instruction itself comes in
// many shapes: wgmma_shape.cuh.j2 makes the one a kernel asks for. Source: PTX ISA, "Asynchronous warpgroup level
// matrix multiply-accumulate".

//: wgmma_fence
// Orders this warpgroup's accesses to the registers of the accumulator and of A before the next wgmma.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

//: wgmma_commit
// Closes the group of the wgmma issued since the last commit.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

//: wgmma_wait
// Waits until at most `Pending` of this warpgroup's groups are still under way.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

//: warpgroup_fence_operand
// Keeps the compiler from moving accesses to the accumulators across this place.
template <int N>
__device__ __forceinline__ void warpgroup_fence_operand(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N>
__device__ __forceinline__ void warpgroup_fence_operand(unsigned (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

//: setmaxnreg_dec
// Gives registers of this warpgroup back, down to N a thread (a multiple of 8, 24 to 256).
template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

//: setmaxnreg_inc
// Waits for registers of the block's pool until this warpgroup has N a thread (a multiple of 8, 24 to 256).
template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
