// nvcuda::wmma. A fragment is made of the registers of the mma.sync operands that multiply it, element by element.
//
// One product M x N x K is a grid of m16n8 tiles. Where M is 8 it is computed transposed, so that 16 divides the rows.
#pragma once

namespace nvcuda::wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

template <class T>
struct Storage {
  using Type = T;
  static constexpr int kPack = 2;   // elements in a register
  static constexpr int kParts = 4;  // registers of a row tile's operand; a column tile's has half
};
template <>
struct Storage<precision::tf32> {
  using Type = float;
  static constexpr int kPack = 1;
  static constexpr int kParts = 4;
};
// Half of what mma.sync.m16n8k32 multiplies.
template <>
struct Storage<signed char> {
  using Type = signed char;
  static constexpr int kPack = 4;
  static constexpr int kParts = 2;
};

struct Position {
  int outer, k;
};

// Row tiles (16 rows), column tiles (8 columns) and where each element of a lane lies in them.
template <int M, int N, int K>
struct Tiles {
  static_assert((M == 16 && N == 16) || (M == 32 && N == 8) || (M == 8 && N == 32), "wmma shapes");
  static constexpr bool kTransposed = M == 8;
  static constexpr int kRowTiles = (kTransposed ? N : M) / 16, kColumnTiles = (kTransposed ? M : N) / 8;

  static EMU_INLINE Position row_operand(int element, int pack, int parts) {
    int lane = int(emu_lane()), tile = element / (parts * pack), part = element / pack % parts;
    return {16 * tile + lane / 4 + 8 * (part % 2), pack * (lane % 4) + element % pack + 4 * pack * (part / 2)};
  }
  static EMU_INLINE Position column_operand(int element, int pack, int parts) {
    int lane = int(emu_lane()), tile = element / (parts * pack), part = element / pack % parts;
    return {8 * tile + lane / 4, pack * (lane % 4) + element % pack + 4 * pack * part};
  }
  // Row and column in D.
  static EMU_INLINE Position result(int element) {
    int lane = int(emu_lane()), tile = element / 4, part = element % 4;
    int row = 16 * (tile / kColumnTiles) + lane / 4 + 8 * (part / 2),
        column = 8 * (tile % kColumnTiles) + 2 * (lane % 4) + part % 2;
    return kTransposed ? Position{column, row} : Position{row, column};
  }
};

template <class Use, int M, int N, int K, class T, class Layout = void>
class fragment {
 public:
  using Shape = Tiles<M, N, K>;
  using element_type = typename Storage<T>::Type;
  using storage_element_type = element_type;
  static constexpr int kPack = Storage<T>::kPack, kParts = Storage<T>::kParts;
  static constexpr bool kIsResult = std::is_same_v<Use, accumulator>;
  static constexpr bool kIsRowOperand = std::is_same_v<Use, matrix_a> != Shape::kTransposed;
  static_assert(kIsResult || K == 2 * kParts * kPack, "wmma: K is 16, and 8 for tf32");
  static constexpr int num_elements = kIsResult       ? 4 * Shape::kRowTiles * Shape::kColumnTiles
                                      : kIsRowOperand ? kParts * kPack * Shape::kRowTiles
                                                      : kParts / 2 * kPack * Shape::kColumnTiles;
  static constexpr int num_storage_elements = num_elements;
  element_type x[num_elements];

  // Index in memory of an element, with `ld` elements between rows (or columns).
  static EMU_INLINE size_t index(int element, size_t ld, bool row) {
    if constexpr (kIsResult) {
      Position at = Shape::result(element);
      return row ? at.outer * ld + at.k : at.k * ld + at.outer;
    } else {
      Position at = kIsRowOperand ? Shape::row_operand(element, kPack, kParts)
                                  : Shape::column_operand(element, kPack, kParts / 2);
      bool k_is_contiguous = row == std::is_same_v<Use, matrix_a>;
      return k_is_contiguous ? at.outer * ld + at.k : at.k * ld + at.outer;
    }
  }
};

template <class Use, int M, int N, int K, class T, class Layout, class V>
EMU_INLINE void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, V value) {
  for (int i = 0; i < f.num_elements; ++i) f.x[i] = value;
}

// `bytes`: those of a lane's elements, to which PTX wants rows aligned. The C++ functions want 32 of every fragment,
// which a fragment of bytes cannot give, as the next one along K begins 16 on.
EMU_INLINE void check_matrix(const void* p, size_t row_bytes, size_t bytes = 32) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0)
    emu_trap(
        "wmma: the matrix is misaligned, its address must be a multiple of 32 bytes (of its fragment's for bytes)");
  if (row_bytes % (bytes < 16 ? bytes : 16) != 0)
    emu_trap("wmma: the leading dimension must be a multiple of 16 bytes (of its fragment's for bytes)");
}

template <class Use, int M, int N, int K, class T, class Layout>
EMU_INLINE void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f,
                                 const typename fragment<Use, M, N, K, T, Layout>::element_type* p, unsigned ld) {
  static_assert(!std::is_void_v<Layout>, "an accumulator is loaded with a layout_t argument");
  check_matrix(p, ld * sizeof(*p), sizeof(*p) == 1 ? sizeof(f.x) : 32);
  for (int i = 0; i < f.num_elements; ++i) f.x[i] = p[f.index(i, ld, std::is_same_v<Layout, row_major>)];
}
template <int M, int N, int K, class T>
EMU_INLINE void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* p, unsigned ld, layout_t layout) {
  check_matrix(p, ld * sizeof(T));
  for (int i = 0; i < f.num_elements; ++i) f.x[i] = p[f.index(i, ld, layout == mem_row_major)];
}
template <int M, int N, int K, class T>
EMU_INLINE void store_matrix_sync(T* p, const fragment<accumulator, M, N, K, T>& f, unsigned ld, layout_t layout) {
  check_matrix(p, ld * sizeof(T));
  for (int i = 0; i < f.num_elements; ++i) p[f.index(i, ld, layout == mem_row_major)] = f.x[i];
}

EMU_INLINE float __float_to_tf32(float x) {
  const unsigned bits = emu::bit_cast<unsigned>(x);
  if (x != x) return emu::bit_cast<float>(0x7fffffffu);
  // Ties away from zero; infinity stays, since its low bits are zero.
  return emu::bit_cast<float>((bits + 0x1000u) & 0xffffe000u);
}

// Register number `word` of a fragment's elements.
template <class T>
EMU_INLINE unsigned packed(const T* x, int word) {
  if constexpr (sizeof(T) == 4) return emu::bit_cast<unsigned>(x[word]);
  if constexpr (sizeof(T) == 1) {
    unsigned bytes;
    memcpy(&bytes, x + 4 * word, 4);
    return bytes;
  }
  if constexpr (sizeof(T) == 2)
    return emu::bit_cast<uint16_t>(x[2 * word]) | unsigned(emu::bit_cast<uint16_t>(x[2 * word + 1])) << 16;
}

template <int M, int N, int K, class T, class A, class B, class D, class C>
EMU_INLINE void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, T, A>& a,
                         const fragment<matrix_b, M, N, K, T, B>& b, const fragment<accumulator, M, N, K, C>& c) {
  using Shape = Tiles<M, N, K>;
  constexpr bool kHalf = std::is_same_v<T, __half>, kTf32 = std::is_same_v<T, precision::tf32>;
  constexpr bool kBytes = std::is_same_v<T, signed char>;
  static_assert(kHalf || kTf32 || kBytes || std::is_same_v<T, __nv_bfloat16>,
                "wmma operands are half, bf16, tf32 or signed char");
  static_assert(kBytes ? std::is_same_v<D, int> : std::is_same_v<D, float> || (kHalf && std::is_same_v<D, __half>),
                "wmma accumulates in float, half in half too, bytes in int");
  static_assert(std::is_same_v<D, C>, "wmma: c and d have the same type here");
  constexpr bool kHalfSum = std::is_same_v<C, __half>;
  constexpr int kParts = Storage<T>::kParts;
  constexpr EmuMma kKind = kBytes     ? EMU_MMA_K32_S8_S32
                           : kTf32    ? EMU_MMA_K8_TF32_F32
                           : !kHalf   ? EMU_MMA_K16_BF16_F32
                           : kHalfSum ? EMU_MMA_K16_F16_F16
                                      : EMU_MMA_K16_F16_F32;
  const auto *rows = a.x, *columns = b.x;
  if constexpr (Shape::kTransposed) std::swap(rows, columns);
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    for (int n = 0; n < Shape::kColumnTiles; ++n) {
      const C* sum = &c.x[4 * (m * Shape::kColumnTiles + n)];
      D* out = &d.x[4 * (m * Shape::kColumnTiles + n)];
      EmuWords words = emu_mma(
          kKind, packed(rows, kParts * m), packed(rows, kParts * m + 1),
          kBytes ? 0 : packed(rows, kBytes ? 0 : 4 * m + 2), kBytes ? 0 : packed(rows, kBytes ? 0 : 4 * m + 3),
          packed(columns, kParts / 2 * n), kBytes ? 0 : packed(columns, kBytes ? 0 : 2 * n + 1), packed(sum, 0),
          packed(sum, 1), kHalfSum ? 0 : packed(sum, kHalfSum ? 0 : 2), kHalfSum ? 0 : packed(sum, kHalfSum ? 0 : 3));
      const unsigned word[4] = {unsigned(words.low), unsigned(words.low >> 32), unsigned(words.high),
                                unsigned(words.high >> 32)};
      for (int i = 0; i < 4; ++i) {
        if constexpr (kHalfSum) {
          out[i] = emu::from_bits<__half>(word[i / 2] >> (16 * (i % 2)) & 0xffff);
        } else {
          out[i] = emu::bit_cast<D>(word[i]);
        }
      }
    }
  }
}

}  // namespace nvcuda::wmma
