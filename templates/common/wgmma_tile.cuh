// Operands of wgmma in shared memory, as TMA leaves them there. A tile consists of slabs whose rows are as wide as the
// swizzle: 128 bytes, or fewer where the tile is narrow. Along K ("K-major") a slab has a row for each of the tile's rows
// or columns; across it ("MN-major") one for each k. Source: PTX ISA, "Shared memory matrix layout" of wgmma.

//: OperandTile
// The tile of A (Extent rows) or of B (Extent columns), Depth deep along K, in slabs whose rows have RowBytes bytes.
template <typename T, bool KMajor, int Extent, int Depth, int RowBytes>
struct OperandTile {
  static constexpr int BYTES = Extent * Depth * static_cast<int>(sizeof(T));
  static constexpr int WIDTH = RowBytes / static_cast<int>(sizeof(T));       // elements of a row
  static constexpr int SLABS = (KMajor ? Depth : Extent) / WIDTH;
  static constexpr int SLAB = (KMajor ? Extent : Depth) * RowBytes;          // bytes
  static constexpr int STEP = 32 / static_cast<int>(sizeof(T));              // k of one instruction
  static constexpr int STEPS = Depth / STEP;

  // Bytes from the tile's start to the operand of an instruction: `step` along K, rows or columns from `first`.
  static constexpr __device__ __forceinline__ int offset(int first, int step) {
    if (KMajor) return step * 32 / RowBytes * SLAB + step * 32 % RowBytes + first * RowBytes;
    return first / WIDTH * SLAB + step * STEP * RowBytes;
  }

  // The descriptor of the operand at a shared address. Between groups of eight rows lie 8 * RowBytes, between slabs that
  // one instruction spans SLAB bytes.
  static __device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    constexpr unsigned long long SWIZZLE = RowBytes == 128 ? 1 : RowBytes == 64 ? 2 : 3;
    constexpr unsigned long long LEADING = KMajor ? 1 : SLAB / 16;
    constexpr unsigned long long STRIDE = 8 * RowBytes / 16;
    return (address & 0x3ffff) >> 4 | LEADING << 16 | STRIDE << 32 | SWIZZLE << 62;
  }
};
