// How an operand is accessed, Pack elements at a time: `Items` is what a thread holds of them, `stride` that of
// neighbours, `remaining` how many elements there are from here on.

//: UnitInput
// Neighbours in memory.
template <typename T, int Pack, typename Load = LoadPlain>
struct UnitInput {
  using Items = Vector<T, Pack>;
  static __device__ __forceinline__ Items load(const T* p, long long, long long remaining) {
    return load_vector<Pack, Load>(p, remaining);
  }
};

//: WholeInput
// Neighbours in memory, all of them or none.
template <typename T, int Pack>
struct WholeInput {
  using Items = Vector<T, Pack>;
  static __device__ __forceinline__ Items load(const T* p, long long, long long remaining) {
    Items items = {};
    if (remaining > 0) items = load_vector<Pack>(p);
    return items;
  }
};

//: HalfInput
// Neighbours in memory, of which each is that of two elements.
template <typename T, int Pack, typename Load = LoadPlain>
struct HalfInput {
  using Items = Vector<T, Pack / 2>;
  static __device__ __forceinline__ Items load(const T* p, long long, long long remaining) {
    return load_vector<Pack / 2, Load>(p, remaining / 2);
  }
};

//: StridedInput
// Single elements.
template <typename T, int Pack>
struct StridedInput {
  using Items = Vector<T, Pack>;
  static __device__ __forceinline__ Items load(const T* p, long long stride, long long remaining) {
    return load_strided<Pack>(p, stride, remaining);
  }
};

//: BroadcastInput
// One element for all.
template <typename T>
struct BroadcastInput {
  using Items = T;
  static __device__ __forceinline__ Items load(const T* p, long long, long long) { return *p; }
};

//: UnitOutput
// Neighbours in memory.
template <typename T, int Pack, typename Store = StorePlain>
struct UnitOutput {
  using Items = Vector<T, Pack>;
  static __device__ __forceinline__ void store(T* p, const Items& items, long long, long long remaining) {
    store_vector<Pack, Store>(p, items, remaining);
  }
};

//: StridedOutput
// Single elements.
template <typename T, int Pack>
struct StridedOutput {
  using Items = Vector<T, Pack>;
  static __device__ __forceinline__ void store(T* p, const Items& items, long long stride, long long remaining) {
    store_strided<Pack>(p, items, stride, remaining);
  }
};
