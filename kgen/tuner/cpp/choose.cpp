// A recorded choice (kgen/tuner/recorded.py): the arithmetic of rules and of a model over the columns of a class's
// configs.
//
// Numbers first: what follows from the sizes alone, with the guards that say whether the recording serves them. Then, a
// chunk of rows at a time, which rows are valid; of these, which are best with the first value of each `last` field;
// and then the best of these rows with all of their values.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

constexpr int CHUNK = 128;
constexpr int STEP = 8;  // lanes are computed in multiples of it; nobody looks at those beyond the last row
constexpr int FIELDS = 8;
constexpr unsigned THREADS = 2;  // of one problem; four were no faster than two on 16 CPUs
constexpr unsigned PROBLEMS_AT_ONCE = 8;
constexpr int64_t FEW = 2048;  // rows for which no other thread is started: 850 take 80 us
constexpr double NEVER = std::numeric_limits<double>::infinity();

// In the order of OPS in kgen/tuner/traced.py; the last two are of programs alone.
enum Op : int32_t {
  ADD,
  SUBTRACT,
  MULTIPLY,
  DIVIDE,
  FLOOR_DIVIDE,
  REMAINDER,
  MINIMUM,
  MAXIMUM,
  LESS,
  LESS_EQUAL,
  GREATER,
  GREATER_EQUAL,
  EQUAL,
  NOT_EQUAL,
  AND,
  OR,
  NOT,
  NEGATIVE,
  CEIL,
  FLOOR,
  RINT,
  SQRT,
  LOG2,
  GCD,
  POWER,
  WHERE,
  GUARD,
  ALIVE
};

struct Instruction {
  int32_t op, to, a, b, c;
};

// What an instruction reads: a register, a number or a column, by its index.
enum Kind : int32_t { REGISTER, NUMBER, COLUMN };
struct Operand {
  int32_t code;
  Kind kind() const { return static_cast<Kind>(code & 3); }
  int32_t index() const { return code >> 2; }
};

// In what the values of a column are stored, the least that holds them all: less memory to read anew in each call.
enum Stored : int32_t { F64, F32, U16, U8 };

// A column has a value for each row, for each combination of the `last` fields, or for both: `strides` in elements.
// STEP more may be read behind the last.
struct Column {
  const void* data;
  int32_t row_stride, last_stride;
  Stored stored;
};

struct Program {
  const Column* columns;
  const Instruction* code;
  int32_t column_count, registers, count, results[2 + FIELDS];
};

// Rows of a table with one value each of the fields that sizes decide. Those of a group, `begins[i]` to `begins[i +
// 1]`, are valid alike; `places`: of each row, its place in the table. Results of `valid`, whose rows are groups:
// whether they are; of `plain`: seconds, misfit; of `whole`: whether the `last` fields are valid, seconds, the other
// fields.
struct Part {
  const int32_t* begins;
  const int64_t* places;
  int32_t groups, last, table, variant, variants, field_count;
  Program valid, plain, whole;
};

struct Found {
  double misfit, seconds;
  int64_t order;
  int32_t part, row, last;
  double fields[FIELDS];

  bool operator<(const Found& other) const {
    if (misfit != other.misfit) return misfit < other.misfit;
    return seconds != other.seconds ? seconds < other.seconds : order < other.order;
  }
};

// Truth values are 0 and 1.
__attribute__((always_inline)) inline double of_two(Op op, double a, double b) {
  switch (op) {
    case ADD:
      return a + b;
    case SUBTRACT:
      return a - b;
    case MULTIPLY:
      return a * b;
    case DIVIDE:
      return a / b;
    case FLOOR_DIVIDE:
      return std::floor(a / b);
    case REMAINDER:
      return a - std::floor(a / b) * b;
    case MINIMUM:
      return a < b ? a : b;
    case MAXIMUM:
      return a > b ? a : b;
    case LESS:
      return a < b ? 1.0 : 0.0;
    case LESS_EQUAL:
      return a <= b ? 1.0 : 0.0;
    case GREATER:
      return a > b ? 1.0 : 0.0;
    case GREATER_EQUAL:
      return a >= b ? 1.0 : 0.0;
    case EQUAL:
      return a == b ? 1.0 : 0.0;
    case NOT_EQUAL:
      return a != b ? 1.0 : 0.0;
    case AND:
      return a * b;
    case OR:
      return a > b ? a : b;
    case NOT:
      return 1.0 - a;
    case NEGATIVE:
      return -a;
    case CEIL:
      return std::ceil(a);
    case FLOOR:
      return std::floor(a);
    case RINT:
      return std::rint(a);
    case SQRT:
      return std::sqrt(a);
    case LOG2:
      return std::log2(a);
    case GCD:
      return static_cast<double>(std::gcd(static_cast<int64_t>(a), static_cast<int64_t>(b)));
    case POWER:
      return std::pow(a, b);
    default:
      return 0;
  }
}

struct Values {
  const double* data;
  bool one;  // the same for all lanes

  double at(int lane) const { return data[one ? 0 : lane]; }
};

// Of `n` lanes, a multiple of STEP, which `n / STEP * STEP` tells the compiler: no lane is computed by itself.
template <Op op>
void apply(double* __restrict to, Values a, Values b, int n) {
  n = n / STEP * STEP;
  if (a.one && b.one) {
    std::fill_n(to, n, of_two(op, *a.data, *b.data));
  } else if (a.one) {
    const double x = *a.data;
    for (int i = 0; i < n; ++i) to[i] = of_two(op, x, b.data[i]);
  } else if (b.one) {
    const double y = *b.data;
    for (int i = 0; i < n; ++i) to[i] = of_two(op, a.data[i], y);
  } else {
    for (int i = 0; i < n; ++i) to[i] = of_two(op, a.data[i], b.data[i]);
  }
}

template <bool one_yes, bool one_no>
void choose(double* __restrict to, const double* condition, const double* yes, const double* no, int n) {
  n = n / STEP * STEP;
  for (int i = 0; i < n; ++i) {
    const double x = yes[one_yes ? 0 : i], y = no[one_no ? 0 : i];
    to[i] = condition[i] != 0 ? x : y;
  }
}

void choose(double* __restrict to, Values condition, Values yes, Values no, int n) {
  if (condition.one) {
    const Values taken = *condition.data != 0 ? yes : no;
    for (int i = 0; i < n; ++i) to[i] = taken.data[taken.one ? 0 : i];
  } else if (yes.one) {
    (no.one ? choose<true, true> : choose<true, false>)(to, condition.data, yes.data, no.data, n);
  } else {
    (no.one ? choose<false, true> : choose<false, false>)(to, condition.data, yes.data, no.data, n);
  }
}

// Whether one of the truth values is 1.
bool any(const double* values, int n) {
  n = n / STEP * STEP;
  uint64_t bits = 0;
  for (int i = 0; i < n; ++i) {
    uint64_t one;
    std::memcpy(&one, &values[i], sizeof one);
    bits |= one;
  }
  return bits != 0;
}

using Apply = void (*)(double*, Values, Values, int);
template <int... ops>
constexpr auto table(std::integer_sequence<int, ops...>) {
  return std::vector<Apply>{apply<static_cast<Op>(ops)>...};
}
const std::vector<Apply> APPLY = table(std::make_integer_sequence<int, WHERE>());

// The best that were found, the first of them first.
class Best {
 public:
  explicit Best(size_t most) : most_(most) { found_.reserve(most + 1); }

  bool takes(const Found& one) const { return found_.size() < most_ || one < found_.back(); }
  void add(const Found& one) {
    found_.insert(std::upper_bound(found_.begin(), found_.end(), one), one);
    if (found_.size() > most_) found_.pop_back();
  }
  std::vector<Found>& all() { return found_; }

 private:
  size_t most_;
  std::vector<Found> found_;
};

// Runs programs over chunks of lanes; a lane is a row with a combination of the `last` fields.
class Machine {
 public:
  explicit Machine(const double* numbers) : numbers_(numbers) {}

  // `rows[i]` and `last[i]` are those of lane i, of `lanes`. `in_a_row`: `rows[0]` and those after it, all with the
  // first of `last`. False where an ALIVE finds no lane.
  bool run(const Program& program, const int32_t* rows, const int32_t* last, int lanes, bool in_a_row) {
    program_ = &program, rows_ = rows, last_ = last, lanes_ = lanes, in_a_row_ = in_a_row;
    const int n = n_ = (lanes + STEP - 1) / STEP * STEP;
    registers_.resize(std::max(registers_.size(), static_cast<size_t>(program.registers) * CHUNK));
    gathered_.resize(std::max(gathered_.size(), static_cast<size_t>(program.column_count) * CHUNK));
    columns_.assign(program.column_count, {nullptr, false});
    for (const Instruction* at = program.code; at != program.code + program.count; ++at) {
      const Values a = values({at->a});
      if (at->op == ALIVE) {
        if (a.one ? *a.data == 0 : !any(a.data, n)) return false;
      } else if (at->op == WHERE) {
        choose(to(at->to), a, values({at->b}), values({at->c}), n);
      } else {
        APPLY[at->op](to(at->to), a, values({at->b}), n);
      }
    }
    return true;
  }

  Values values(int32_t operand) { return values(Operand{operand}); }
  double value(int32_t operand, int lane) { return values(operand).at(lane); }

 private:
  double* to(int32_t index) { return &registers_[static_cast<size_t>(index) * CHUNK]; }
  Values values(Operand x) {
    if (x.kind() == NUMBER) return {numbers_ + x.index(), true};
    if (x.kind() == REGISTER) return {to(x.index()), false};
    Values& found = columns_[x.index()];
    if (found.data == nullptr) found = lanes(program_->columns[x.index()], x.index());
    return found;
  }
  Values lanes(const Column& column, int index) {
    switch (column.stored) {
      case F32:
        return lanes<float>(column, index);
      case U16:
        return lanes<uint16_t>(column, index);
      case U8:
        return lanes<uint8_t>(column, index);
      default:
        return lanes<double>(column, index);
    }
  }
  template <typename T>
  Values lanes(const Column& column, int index) {
    const T* const data = static_cast<const T*>(column.data);
    double* __restrict to = &gathered_[static_cast<size_t>(index) * CHUNK];
    const int n = n_ / STEP * STEP;
    if (column.row_stride == 0 && (in_a_row_ || column.last_stride == 0)) {
      to[0] = data[0];
      return {to, true};
    }
    if (in_a_row_ && column.row_stride == 1) {
      const T* const first = data + rows_[0];
      if constexpr (std::is_same_v<T, double>) return {first, false};
      for (int i = 0; i < n; ++i) to[i] = first[i];
    } else {
      const int64_t first = in_a_row_ ? rows_[0] : 0;
      for (int i = 0; i < lanes_; ++i) {
        const int64_t row = in_a_row_ ? first + i : rows_[i];
        to[i] = data[row * column.row_stride + last_[i] * column.last_stride];
      }
      std::fill(to + lanes_, to + n, to[0]);
    }
    return {to, false};
  }

  const double* numbers_;
  const Program* program_;
  const int32_t *rows_, *last_;
  int lanes_, n_;  // n_: with those up to the next multiple of STEP, of which nobody looks at the results
  bool in_a_row_;
  std::vector<double> registers_, gathered_;
  std::vector<Values> columns_;
};

void plain_rows(const Part& part, int number, Machine& machine, Best& best) {
  constexpr int32_t first[CHUNK] = {};
  std::vector<int32_t> rows;
  for (int start = 0; start < part.groups; start += CHUNK) {
    bool valid[CHUNK];
    const int n = std::min(CHUNK, part.groups - start);
    if (!machine.run(part.valid, &start, first, n, true)) continue;
    for (int i = 0; i < n; ++i) valid[i] = machine.value(part.valid.results[0], i) != 0;
    for (int i = 0; i < n; ++i) {
      for (int row = part.begins[start + i]; valid[i] && row < part.begins[start + i + 1]; ++row) rows.push_back(row);
    }
  }
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    // Of rows that lie near each other those between are run too: columns are read as they lie.
    end = std::upper_bound(rows.begin() + begin, rows.end(), rows[begin] + CHUNK - 1) - rows.begin();
    const int span = rows[end - 1] - rows[begin] + 1;
    const bool in_a_row = 2 * static_cast<int>(end - begin) >= span;
    if (in_a_row) {
      machine.run(part.plain, &rows[begin], first, span, true);
    } else {
      end = std::min(begin + CHUNK, rows.size());
      machine.run(part.plain, &rows[begin], first, static_cast<int>(end - begin), false);
    }
    const Values seconds = machine.values(part.plain.results[0]), misfit = machine.values(part.plain.results[1]);
    for (size_t i = begin; i < end; ++i) {
      const int lane = in_a_row ? rows[i] - rows[begin] : static_cast<int>(i - begin);
      Found one{misfit.at(lane), seconds.at(lane), 0, number, rows[i], 0, {}};
      if (!(one.seconds < NEVER) || !best.takes(one)) continue;  // as if it were the first: most are not taken
      one.order = (static_cast<int64_t>(part.table) << 40) + part.places[rows[i]] * part.variants + part.variant;
      if (best.takes(one)) best.add(one);
    }
  }
}

// Calls `take` with 0 to `count` - 1, each from one of `most` threads at most, whose number it is given too. On a host
// of two CPUs a second thread gained nothing.
template <typename Take>
void shared_out(int count, unsigned most, const Take& take) {
  const unsigned threads = std::clamp(std::thread::hardware_concurrency() / 2, 1u, most);
  std::atomic<int> next{0};
  const auto some = [&](unsigned thread) {
    for (int i = next++; i < count; i = next++) take(i, thread);
  };
  std::vector<std::thread> others;
  try {
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(some, i);
  } catch (const std::system_error&) {  // a process may have no more threads: those that are there take all
  }
  some(0);
  for (std::thread& other : others) other.join();
}

// The best `most` rows of all parts with plain `last` fields. Which thread takes a part does not matter, as no two rows
// are equal.
Best plain_rows_of(const Part* parts, int count, const double* numbers, size_t most, unsigned threads) {
  std::vector<Best> found(threads, Best(most));
  std::vector<Machine> machines(threads, Machine(numbers));
  shared_out(count, threads, [&](int i, unsigned thread) { plain_rows(parts[i], i, machines[thread], found[thread]); });
  for (unsigned i = 1; i < threads; ++i) {
    for (const Found& one : found[i].all()) found[0].add(one);
  }
  return std::move(found[0]);
}

// All combinations of the `last` fields of the rows in `top` that are a part's.
void whole_rows(const Part& part, int number, const std::vector<Found>& top, const std::vector<int>& ranks,
                Machine& machine, Best& best) {
  int32_t rows[CHUNK], last[CHUNK];
  int64_t order[CHUNK];
  int n = 0;
  const auto flush = [&] {
    if (n > 0 && machine.run(part.whole, rows, last, n, false)) {
      for (int i = 0; i < n; ++i) {
        Found one{0, machine.value(part.whole.results[1], i), order[i], number, rows[i], last[i], {}};
        if (machine.value(part.whole.results[0], i) == 0 || !(one.seconds < NEVER) || !best.takes(one)) continue;
        for (int f = 0; f < part.field_count; ++f) one.fields[f] = machine.value(part.whole.results[2 + f], i);
        best.add(one);
      }
    }
    n = 0;
  };
  for (size_t i = 0; i < top.size(); ++i) {
    if (top[i].part != number) continue;
    for (int l = 0; l < part.last; ++l) {
      rows[n] = top[i].row, last[n] = l;
      order[n] = (static_cast<int64_t>(ranks[part.table]) << 40) + static_cast<int64_t>(i) * part.last + l;
      if (++n == CHUNK) flush();
    }
  }
  flush();
}

// What follows from the sizes, with which `numbers` begins. Whether all guards hold.
bool follow(const Instruction* code, int count, double* numbers) {
  for (const Instruction* at = code; at != code + count; ++at) {
    const double a = numbers[at->a];
    if (at->op == GUARD) {
      if ((a != 0) != (at->b != 0)) return false;
    } else if (at->op == WHERE) {
      numbers[at->to] = a != 0 ? numbers[at->b] : numbers[at->c];
    } else {
      numbers[at->to] = of_two(static_cast<Op>(at->op), a, numbers[at->b]);
    }
  }
  return true;
}

// The best `count` of what `reach` rows give that are the best with plain `last` fields.
Best best_of(const double* numbers, const Part* parts, int part_count, int tables, int reach, int count,
             unsigned threads) {
  Best plain = plain_rows_of(parts, part_count, numbers, reach, threads), best(count);
  std::vector<Found>& top = plain.all();
  while (!top.empty() && top.back().misfit > top.front().misfit) top.pop_back();
  std::vector<int> ranks(tables, static_cast<int>(top.size()));
  for (size_t i = 0; i < top.size(); ++i) {
    int& rank = ranks[parts[top[i].part].table];
    rank = std::min(rank, static_cast<int>(i));
  }
  Machine machine(numbers);
  for (int i = 0; i < part_count; ++i) whole_rows(parts[i], i, top, ranks, machine, best);
  return best;
}

}  // namespace

// The best `count` for each of `problems`, into `found`, and how many there were, into `there`: -1 where a guard does
// not hold. Of each problem `sizes` has `size_count`; `numbers` are those that no size changes, with room for all.
extern "C" __attribute__((visibility("default"))) void kgen_choose(const Instruction* code, int32_t code_count,
                                                                   const double* numbers, int32_t number_count,
                                                                   const double* sizes, int32_t size_count,
                                                                   int32_t problems, const Part* parts,
                                                                   int32_t part_count, int32_t tables, int32_t reach,
                                                                   int32_t count, Found* found, int32_t* there) {
  int64_t rows = 0;
  for (int i = 0; i < part_count; ++i) rows += parts[i].begins[parts[i].groups];
  const unsigned threads = problems > 1 || rows <= FEW ? 1 : THREADS;
  const unsigned at_once = std::clamp(static_cast<unsigned>(problems), 1u, PROBLEMS_AT_ONCE);
  shared_out(problems, at_once, [&](int i, unsigned) {
    std::vector<double> own(numbers, numbers + number_count);
    std::copy_n(sizes + static_cast<int64_t>(i) * size_count, size_count, own.begin());
    there[i] = -1;
    if (!follow(code, code_count, own.data())) return;
    Best best = best_of(own.data(), parts, part_count, tables, reach, count, threads);
    std::copy(best.all().begin(), best.all().end(), found + static_cast<int64_t>(i) * count);
    there[i] = static_cast<int32_t>(best.all().size());
  });
}
