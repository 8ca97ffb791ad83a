// The states of reductions: what a thread has of the elements that it has seen. A state begins as that of no elements;
// `update` adds one, that is at a place, `combine` what another thread has, `combine_lanes` what neighbouring lanes of
// a warp have, so that all of them end up with the same bits; `complete` makes the result of `length` elements.

//: highest
// What nothing of a type is larger than. A function: nvcc's pass for the host reads what members begin as, and has no
// __int_as_float.
template <typename T>
__device__ __forceinline__ T highest() {
  if constexpr (static_cast<T>(0.5) != T(0)) {
    return __int_as_float(0x7f800000);
  } else if constexpr (static_cast<T>(-1) > T(0)) {
    return static_cast<T>(-1);
  } else {
    return static_cast<T>(~0ull >> (65 - 8 * sizeof(T)));
  }
}

//: lowest
// What nothing of a signed type is less than.
template <typename T>
__device__ __forceinline__ T lowest() {
  return static_cast<T>(0.5) != T(0) ? -highest<T>() : -highest<T>() - T(1);
}

//: SumState
// A sum.
template <typename T>
struct SumState {
  T value = 0;

  template <typename Place>
  __device__ __forceinline__ void update(T other, const Place&) {
    value += other;
  }
  __device__ __forceinline__ void combine(const SumState& other) { value += other.value; }
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {
    value = sum_lanes<Lanes>(value);
  }
  __device__ __forceinline__ void complete(int) {}
  template <typename F>
  __device__ __forceinline__ void for_each_member(F f) {
    f(value);
  }
};

//: ProductState
// A product.
template <typename T>
struct ProductState {
  T value = 1;

  template <typename Place>
  __device__ __forceinline__ void update(T other, const Place&) {
    value *= other;
  }
  __device__ __forceinline__ void combine(const ProductState& other) { value *= other.value; }
};

//: MeanState
// A mean: until it is complete, a sum.
template <typename T>
struct MeanState : SumState<T> {
  __device__ __forceinline__ void complete(int length) { this->value /= static_cast<T>(length); }
};

//: ShortMeanState
// The same of short rows, which feel a division's branch: ptxas moves nothing over it.
struct ShortMeanState : SumState<float> {
  __device__ __forceinline__ void complete(int length) { value = divide_short(value, static_cast<float>(length)); }
};

//: MaxState
// The largest; NaN where there is one.
template <typename T>
struct MaxState {
  T value = lowest<T>();

  template <typename Place>
  __device__ __forceinline__ void update(T other, const Place&) {
    value = largest(value, other);
  }
  __device__ __forceinline__ void combine(const MaxState& other) { value = largest(value, other.value); }
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {
    value = largest_lanes<Lanes>(value);
  }
  __device__ __forceinline__ void complete(int) {}
  template <typename F>
  __device__ __forceinline__ void for_each_member(F f) {
    f(value);
  }
};

//: MinState
// The smallest; NaN where there is one.
template <typename T>
struct MinState {
  T value = highest<T>();

  template <typename Place>
  __device__ __forceinline__ void update(T other, const Place&) {
    value = smallest(value, other);
  }
  __device__ __forceinline__ void combine(const MinState& other) { value = smallest(value, other.value); }
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {
    value = smallest_lanes<Lanes>(value);
  }
  __device__ __forceinline__ void complete(int) {}
  template <typename F>
  __device__ __forceinline__ void for_each_member(F f) {
    f(value);
  }
};

//: ArgmaxState
// The first of the largest, and where it is; NaN counts as the largest. An Index has room for one more than positions.
template <typename T, typename Index>
struct ArgmaxState {
  T value = lowest<T>();
  Index at = highest<Index>();  // nowhere yet

  template <typename Place>
  __device__ __forceinline__ void update(T other, const Place& place) {
    const Index position = place.at;
    if constexpr (Place::IN_ORDER) {
      keep_next_larger(value, at, other, position);
    } else {
      keep_first_largest(value, at, other, position);
    }
  }
  __device__ __forceinline__ void combine(const ArgmaxState& other) {
    keep_first_largest(value, at, other.value, other.at);
  }
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {
    keep_first_largest_lanes<Lanes>(value, at);
  }
  // Where all are as low as can be, it is the first.
  __device__ __forceinline__ Index position() const { return value == lowest<T>() ? Index(0) : at; }
  __device__ __forceinline__ void complete(int) { at = position(); }
  template <typename F>
  __device__ __forceinline__ void for_each_member(F f) {
    f(value);
    f(at);
  }
};

//: FastExp
// exp and log by an instruction of the special function unit each, for results of 16 bits.
struct FastExp {
  static __device__ __forceinline__ float of(float x) { return ptx::exp_approximate(x); }
  static __device__ __forceinline__ float log(float x) { return __logf(x); }
};

//: PreciseExp
// exp and log as CUDA has them.
struct PreciseExp {
  static __device__ __forceinline__ float of(float x) { return expf(x); }
  static __device__ __forceinline__ double of(double x) { return exp(x); }
  static __device__ __forceinline__ float log(float x) { return logf(x); }
  static __device__ __forceinline__ double log(double x) { return ::log(x); }
};

//: SoftmaxState
// The largest, and the sum of the exponentials of what values are less than it, in one pass over the row: the sum is
// scaled whenever a larger one is found (Milakov and Gimelshein, 2018).
template <typename T, typename Exp>
struct SoftmaxState {
  T max = lowest<T>();
  T sum = 0;

  __device__ __forceinline__ void update_max(T value) {
    if (max != value) sum *= Exp::of(max - value);
    max = value;
  }
  __device__ __forceinline__ void combine(const SoftmaxState& other) {
    const T less = smallest(max, other.max), both = largest(max, other.max);
    const T scale = Exp::of(less == both ? T(0) : less - both);  // infinities are equal, too
    sum = other.max > max ? sum * scale + other.sum : sum + other.sum * scale;
    max = both;
  }
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {
    update_max(largest_lanes<Lanes>(max));
    sum = sum_lanes<Lanes>(sum);
  }
  __device__ __forceinline__ void complete(int) {
    if (max == lowest<T>()) sum = __int_as_float(0x7fc00000);  // NaN
  }
};

//: LogSumExpState
// The logarithm of the sum of exponentials.
template <typename T, typename Exp>
struct LogSumExpState : SoftmaxState<T, Exp> {
  template <typename Place>
  __device__ __forceinline__ void update(T other, const Place&) {
    this->combine({other, T(1)});
  }
  __device__ __forceinline__ T value() const { return this->max + Exp::log(this->sum); }
};

//: WelfordState
// A mean and the sum of the squares around it, which is at last the variance. Even: all threads have as many elements.
template <typename T, bool Even>
struct WelfordState {
  T mean = 0;
  T variance = 0;  // until it is complete, the sum of squares
  T count = 0;

  // Adds the mean and the squares of other values (Chan, Golub and LeVeque, 1979).
  __device__ __forceinline__ void merge(T other_count, T other_mean, T squares) {
    const T both = count + other_count;
    const T inverse = both > 0 ? 1 / both : 0;
    const T difference = mean - other_mean;
    variance = variance + squares + difference * difference * (count * other_count * inverse);
    mean = (count * mean + other_count * other_mean) * inverse;
    count = both;
  }
  __device__ __forceinline__ void combine(const WelfordState& other) { merge(other.count, other.mean, other.variance); }
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {
    const T all = Even ? Lanes * count : sum_lanes<Lanes>(count);
    const T middle = sum_lanes<Lanes>(count * mean) * (all > 0 ? 1 / all : 0);
    const T difference = mean - middle;
    variance = sum_lanes<Lanes>(variance + difference * difference * count);
    mean = middle;
    count = all;
  }
  __device__ __forceinline__ void complete(int length) { variance /= static_cast<T>(length); }
};

//: MomentState
// A sum, and the sum of the squares around its mean.
template <typename T>
struct MomentState {
  T sum = 0;
  T squares = 0;
  T count = 0;

  // The squares around the mean of both: those around each mean, and what the means differ by (Chan, Golub and LeVeque,
  // 1979).
  __device__ __forceinline__ void combine(const MomentState& other) {
    squares += other.squares;
    if (count > 0 && other.count > 0) {
      const T difference = other.sum / other.count - sum / count;
      squares += difference * difference * (count * other.count / (count + other.count));
    }
    sum += other.sum;
    count += other.count;
  }
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {
#pragma unroll
    for (int mask = Lanes / 2; mask > 0; mask /= 2) combine(exchange_state(*this, mask));
  }
  template <typename F>
  __device__ __forceinline__ void for_each_member(F f) {
    f(sum);
    f(squares);
    f(count);
  }
};

//: RowState
// The states of several reductions over the same elements, which are updated together.
template <typename... States>
struct RowState {
  __device__ __forceinline__ void combine(const RowState&) {}
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {}
  __device__ __forceinline__ void complete(int) {}
  template <typename F>
  __device__ __forceinline__ void for_each_member(F) {}
};
template <typename First, typename... Rest>
struct RowState<First, Rest...> : RowState<Rest...> {
  using Others = RowState<Rest...>;
  First first;
  __device__ __forceinline__ Others& others() { return *this; }
  __device__ __forceinline__ const Others& others() const { return *this; }

  __device__ __forceinline__ void combine(const RowState& other) {
    first.combine(other.first);
    Others::combine(other);
  }
  template <int Lanes>
  __device__ __forceinline__ void combine_lanes() {
    first.template combine_lanes<Lanes>();
    Others::template combine_lanes<Lanes>();
  }
  __device__ __forceinline__ void complete(int length) {
    first.complete(length);
    Others::complete(length);
  }
  template <typename F>
  __device__ __forceinline__ void for_each_member(F f) {
    first.for_each_member(f);
    Others::for_each_member(f);
  }
};

//: get
// State number I of a RowState, or part number I of a RowBatch.
template <int I, typename States>
__device__ __forceinline__ auto& get(States& states) {
  if constexpr (I == 0) {
    return states.first;
  } else {
    return get<I - 1>(states.others());
  }
}
