// What a thread adds up of the elements that it has at a time, before it adds that to its state: `begin`, `update` for
// each of them, `finish`. Where a batch is seen TWICE, `between` and `update_again` for each come before the last.

//: BatchElement
// Where an element of a batch is: number e of vector i, at a position of the result.
template <typename Index>
struct BatchElement {
  static constexpr bool IN_ORDER = true;
  int i, e;
  Index at;
};

//: RowElement
// Where an element of a row is; InOrder: behind all that the thread has seen of it.
template <bool InOrder>
struct RowElement {
  static constexpr bool IN_ORDER = InOrder;
  int at;
};

//: Add
// The sum of two, as an operation for `pairwise`.
struct Add {
  template <typename T>
  __device__ __forceinline__ T operator()(T one, T other) const {
    return one + other;
  }
};

//: Largest
// The larger of two, as an operation for `pairwise`.
struct Largest {
  template <typename T>
  __device__ __forceinline__ T operator()(T one, T other) const {
    return largest(one, other);
  }
};

//: Smallest
// The smaller of two, as an operation for `pairwise`.
struct Smallest {
  template <typename T>
  __device__ __forceinline__ T operator()(T one, T other) const {
    return smallest(one, other);
  }
};

//: pairwise
// One of N values, a power of two, by an operation of two.
template <int N, typename T, typename Operation>
__device__ __forceinline__ T pairwise(const T* values, Operation operation) {
  if constexpr (N == 1) {
    return values[0];
  } else {
    return operation(pairwise<N / 2>(values, operation), pairwise<N / 2>(values + N / 2, operation));
  }
}

//: SumBatch
// A batch of values for a SumState, summed in T, in a part for each element of the vectors.
template <typename T, int Pack>
struct SumBatch {
  T part[Pack] = {};
  template <typename State>
  __device__ __forceinline__ void begin(const State&) {}
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place& place, T value) {
    part[place.e] += value;
  }
  template <bool Whole, typename State, int Items>
  __device__ __forceinline__ void finish(State& state, const int (&)[Items]) {
    state.value += pairwise<Pack>(part, Add());
  }
};

//: ByteSumBatch
// A batch of bytes, or of products of two, for a SumState: `add` takes whole vectors, 0 where they are beyond the end.
struct ByteSumBatch {
  int part = 0;
  template <typename State>
  __device__ __forceinline__ void begin(const State&) {}
  template <typename... Vectors>
  __device__ __forceinline__ void add(const Vectors&... vectors) {
    part = dot_bytes(vectors..., part);
  }
  template <bool Whole, typename State, int Items>
  __device__ __forceinline__ void finish(State& state, const int (&)[Items]) {
    state.value += part;
  }
};

//: MaxBatch
// A batch of values for a MaxState, in a part for each element of the vectors.
template <typename T, int Pack>
struct MaxBatch {
  T part[Pack];
  template <typename State>
  __device__ __forceinline__ void begin(const State& state) {
#pragma unroll
    for (int e = 0; e < Pack; ++e) part[e] = state.value;
  }
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place& place, T value) {
    part[place.e] = largest(part[place.e], value);
  }
  template <bool Whole, typename State, int Items>
  __device__ __forceinline__ void finish(State& state, const int (&)[Items]) {
    state.value = pairwise<Pack>(part, Largest());
  }
};

//: MinBatch
// A batch of values for a MinState, in a part for each element of the vectors.
template <typename T, int Pack>
struct MinBatch {
  T part[Pack];
  template <typename State>
  __device__ __forceinline__ void begin(const State& state) {
#pragma unroll
    for (int e = 0; e < Pack; ++e) part[e] = state.value;
  }
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place& place, T value) {
    part[place.e] = smallest(part[place.e], value);
  }
  template <bool Whole, typename State, int Items>
  __device__ __forceinline__ void finish(State& state, const int (&)[Items]) {
    state.value = pairwise<Pack>(part, Smallest());
  }
};

//: DirectBatch
// A batch whose values go to the state at once.
struct DirectBatch {
  static constexpr bool TWICE = false;
  template <typename State>
  __device__ __forceinline__ void begin(const State&) {}
  template <typename State, typename Place, typename T>
  __device__ __forceinline__ void update(State& state, const Place& place, T value) {
    state.update(value, place);
  }
  template <typename State>
  __device__ __forceinline__ void between(State&) {}
  template <typename State, typename T>
  __device__ __forceinline__ void update_again(State&, T) {}
  template <bool Whole, typename State, typename... Of>
  __device__ __forceinline__ void finish(State&, const Of&...) {}
};

//: MomentBatch
// A batch of values for a MomentState, of Items vectors of which vector i has left[i]: their sum, and the squares
// around their mean, with what that differs by from the mean before.
template <typename T, int Items, int Pack>
struct MomentBatch {
  T values[Items][Pack] = {};
  T part[Pack] = {}, squares[Pack] = {};
  template <typename State>
  __device__ __forceinline__ void begin(const State&) {}
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place& place, T value) {
    part[place.e] += value;
    values[place.i][place.e] = value;
  }
  template <bool Whole, typename State>
  __device__ __forceinline__ void finish(State& state, const int (&left)[Items]) {
    int count = Whole ? Items * Pack : 0;
    if (!Whole) {
#pragma unroll
      for (int i = 0; i < Items; ++i) count += left[i];
      if (count == 0) return;
    }
    const T before = static_cast<T>(state.count);
    const T inverse = before > 0 ? 1 / before : 0;
    const T both = before * count / (before + count);
    const T sum = pairwise<Pack>(part, Add());
    const T mean = sum / count;
#pragma unroll
    for (int i = 0; i < Items; ++i)
#pragma unroll
      for (int e = 0; e < Pack; ++e) {
        const T difference = values[i][e] - mean;
        if (Whole || e < left[i]) squares[e] += difference * difference;
      }
    const T moved = before > 0 ? mean - static_cast<T>(state.sum * inverse) : 0;
    state.squares += pairwise<Pack>(squares, Add()) + moved * moved * both;
    state.sum += sum;
    state.count += count;
  }
};

//: SoftmaxBatch
// A batch of values for a SoftmaxState, gone over twice: their largest, then the exponentials of what they are less.
template <typename T, typename Exp>
struct SoftmaxBatch {
  static constexpr bool TWICE = true;
  T max;
  template <typename State>
  __device__ __forceinline__ void begin(const State& state) {
    max = state.max;
  }
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place&, T value) {
    max = largest(max, value);
  }
  template <typename State>
  __device__ __forceinline__ void between(State& state) {
    state.update_max(max);
    if (max == lowest<T>()) max = 0;
  }
  template <typename State>
  __device__ __forceinline__ void update_again(State& state, T value) {
    state.sum += Exp::of(value - max);
  }
  template <bool Whole, typename State, typename... Of>
  __device__ __forceinline__ void finish(State&, const Of&...) {}
};

//: WelfordBatch
// A batch of values for a WelfordState, gone over twice: their mean, then the squares around it.
template <typename T>
struct WelfordBatch {
  static constexpr bool TWICE = true;
  T mean = 0, count = 0, squares = 0;
  template <typename State>
  __device__ __forceinline__ void begin(const State&) {}
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place&, T value) {
    mean += value;
    count += 1;
  }
  template <typename State>
  __device__ __forceinline__ void between(State&) {
    if (count > 0) mean /= count;
  }
  template <typename State>
  __device__ __forceinline__ void update_again(State&, T value) {
    squares += (value - mean) * (value - mean);
  }
  template <bool Whole, typename State, typename... Of>
  __device__ __forceinline__ void finish(State& state, const Of&...) {
    state.merge(count, mean, squares);
  }
};

//: RowBatch
// The batches of the states of a RowState; those that `update` has no value for come last.
template <typename... Batches>
struct RowBatch {
  static __device__ constexpr bool twice() { return false; }
  template <typename State>
  __device__ __forceinline__ void begin(const State&) {}
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place&) {}
  template <typename State>
  __device__ __forceinline__ void between(State&) {}
  template <typename State>
  __device__ __forceinline__ void update_again(State&) {}
  template <bool Whole, typename State, typename... Of>
  __device__ __forceinline__ void finish(State&, const Of&...) {}
};
template <typename First, typename... Rest>
struct RowBatch<First, Rest...> : RowBatch<Rest...> {
  using Others = RowBatch<Rest...>;
  First first;
  static __device__ constexpr bool twice() { return First::TWICE || Others::twice(); }
  __device__ __forceinline__ Others& others() { return *this; }

  template <typename State>
  __device__ __forceinline__ void begin(const State& state) {
    first.begin(state.first);
    Others::begin(state.others());
  }
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place&) {}
  template <typename State, typename Place, typename T, typename... Ts>
  __device__ __forceinline__ void update(State& state, const Place& place, T value, Ts... values) {
    first.update(state.first, place, value);
    Others::update(state.others(), place, values...);
  }
  template <typename State>
  __device__ __forceinline__ void between(State& state) {
    first.between(state.first);
    Others::between(state.others());
  }
  template <typename State, typename T, typename... Ts>
  __device__ __forceinline__ void update_again(State& state, T value, Ts... values) {
    first.update_again(state.first, value);
    Others::update_again(state.others(), values...);
  }
  template <bool Whole, typename State, typename... Of>
  __device__ __forceinline__ void finish(State& state, const Of&... of) {
    first.template finish<Whole>(state.first, of...);
    Others::template finish<Whole>(state.others(), of...);
  }
};

//: reduce_batch
// Adds what a thread has of a row to its state: `pass` goes over it and calls what it is given with each element's
// place and values.
template <typename Batches, typename State, typename Pass>
__device__ __forceinline__ void reduce_batch(State& state, const Pass& pass) {
  Batches batches;
  batches.begin(state);
  pass([&](const auto& place, auto... values) { batches.update(state, place, values...); });
  if constexpr (Batches::twice()) {
    batches.between(state);
    pass([&](const auto&, auto... values) { batches.update_again(state, values...); });
    batches.template finish<true>(state);
  }
}

//: ColumnRows
// The rows that a thread has seen of its columns, and the shares that a batch of `count` more has in their means.
template <typename Ratio>
struct ColumnRows {
  Ratio rows = 0;
  Ratio share, inverse, both;
  __device__ __forceinline__ void begin(int count) {
    share = 1 / static_cast<Ratio>(count);
    inverse = rows > 0 ? 1 / rows : 0;
    both = rows * count / (rows + count);
  }
};

//: ColumnMoments
// A batch of a column's values in Items rows for a MomentState; those with left[i] > 0 count.
template <typename T, int Items>
struct ColumnMoments {
  T values[Items];
  template <typename State, typename Place>
  __device__ __forceinline__ void update(State&, const Place& place, T value) {
    values[place.i] = value;
  }
  template <bool Whole, typename State, typename Rows>
  __device__ __forceinline__ void finish(State& state, const int (&left)[Items], const Rows& rows) {
    T sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Whole || left[i] > 0) sum += values[i];
    const T mean = sum * rows.share;
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      const T difference = values[i] - mean;
      if (Whole || left[i] > 0) squares += difference * difference;
    }
    const T moved = rows.rows > 0 ? mean - state.sum * rows.inverse : 0;
    state.squares += squares + moved * moved * rows.both;
    state.sum += sum;
  }
};
