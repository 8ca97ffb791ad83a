// States in memory, where those of other threads and blocks are read: each member's elements lie together, so that
// neighbouring threads read side by side.

//: SharedStates
// Count states in shared memory.
template <typename State, int Count>
struct SharedStates {
  unsigned char* base;

  __device__ __forceinline__ void store(int at, State state) const {
    int before = 0;
    state.for_each_member([&](auto& member) {
      array(before, member)[at] = member;
      before += sizeof(member);
    });
  }
  __device__ __forceinline__ State load(int at) const {
    State state;
    int before = 0;
    state.for_each_member([&](auto& member) {
      member = array(before, member)[at];
      before += sizeof(member);
    });
    return state;
  }
  // The array of a member, with so many bytes of a state before it.
  template <typename T>
  __device__ __forceinline__ T* array(int before, const T&) const {
    return reinterpret_cast<T*>(base + before * Count);
  }
};

//: GlobalStates
// States in global memory, that other blocks of this launch write: an array for each member, in the members' order.
template <typename State, int Members>
struct GlobalStates {
  void* arrays[Members];

  __device__ __forceinline__ void store(long long at, State state) const {
    int m = 0;
    state.for_each_member([&](auto& member) { array(m++, member)[at] = member; });
  }
  __device__ __forceinline__ State load(long long at) const {
    State state;
    int m = 0;
    state.for_each_member([&](auto& member) { member = __ldcg(array(m++, member) + at); });
    return state;
  }
  template <typename T>
  __device__ __forceinline__ T* array(int m, const T&) const {
    return static_cast<T*>(arrays[m]);
  }
};
