// Barriers of blocks of a launch, each at one counter that is 0 before the launch and after it: of all blocks of a
// cooperative grid, of which one may be waited for several times, with phases counted from 1; of those that share a
// result.

//: grid_arrive
// The block arrives at the barrier: what its threads have written is seen by blocks that have waited.
__device__ __forceinline__ void grid_arrive(int* counter) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) ptx::atomic_add_release(counter, 1);
}

//: grid_wait
// Waits until every block has arrived for the `phase`th time.
__device__ __forceinline__ void grid_wait(const int* counter, int phase) {
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(counter) < phase * static_cast<int>(gridDim.x)) __nanosleep(20);
  }
  __syncthreads();
}

//: grid_leave
// The last thing a block does after so many phases: the last block of all resets the counter.
__device__ __forceinline__ void grid_leave(int* counter, int phases) {
  if (threadIdx.x == 0 && ptx::atomic_add_release(counter, 1) == (phases + 1) * static_cast<int>(gridDim.x) - 1)
    *counter = 0;
}

//: load_vector_fresh
// As load_vector, of what other blocks of this launch have written or added to: past L1.
template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load_vector_fresh(const T* p, long long remaining = N) {
  Vector<T, N> v = {};
  if (remaining >= N) {
#pragma unroll
    for (int i = 0; i < v.ACCESSES; ++i)
      v.access[i] = __ldcg(reinterpret_cast<const typename Vector<T, N>::Access*>(p) + i);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < remaining) v[i] = __ldcg(p + i);
  }
  return v;
}

//: is_last_block
// Whether this block is the last of `blocks` to come here; what the others have written before they did is then seen.
// The counter is 0 before the first and after the last.
__device__ __forceinline__ bool is_last_block(int* counter, int blocks) {
  __threadfence();
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) last = atomicAdd(counter, 1) == blocks - 1;
  if (!__syncthreads_or(last)) return false;
  if (threadIdx.x == 0) *counter = 0;
  __threadfence();
  return true;
}

//: is_first_block
// Whether this block is number 0 of `blocks`, which waits until all of them have come here. The counter is 0 before and
// after.
__device__ __forceinline__ bool is_first_block(int* counter, int block, int blocks) {
  grid_arrive(counter);
  if (block > 0) return false;
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(counter) < blocks) __nanosleep(20);
    *counter = 0;
  }
  __syncthreads();
  return true;
}
