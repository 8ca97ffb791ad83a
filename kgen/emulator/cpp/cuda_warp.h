// Shuffles, votes and reductions across the lanes of a warp.
#pragma once

#define EMU_SHUFFLE(name, mode, Operand)                                                                           \
  template <class T>                                                                                               \
  EMU_INLINE T name(unsigned mask, T value, Operand operand, int width = 32) {                                     \
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "a shuffle moves a scalar of up to 8 bytes"); \
    return emu::from_bits<T>(emu_shuffle(mode, mask, emu::to_bits(value), static_cast<int>(operand), width));      \
  }
EMU_SHUFFLE(__shfl_sync, EMU_SHUFFLE_INDEX, int)
EMU_SHUFFLE(__shfl_up_sync, EMU_SHUFFLE_UP, unsigned)
EMU_SHUFFLE(__shfl_down_sync, EMU_SHUFFLE_DOWN, unsigned)
EMU_SHUFFLE(__shfl_xor_sync, EMU_SHUFFLE_XOR, int)
#undef EMU_SHUFFLE

EMU_INLINE unsigned __ballot_sync(unsigned mask, int predicate) { return emu_vote(EMU_VOTE_BALLOT, mask, predicate); }
EMU_INLINE int __any_sync(unsigned mask, int predicate) { return int(emu_vote(EMU_VOTE_ANY, mask, predicate)); }
EMU_INLINE int __all_sync(unsigned mask, int predicate) { return int(emu_vote(EMU_VOTE_ALL, mask, predicate)); }
EMU_INLINE unsigned __activemask() { return emu_active_mask(); }

template <class T>
EMU_INLINE unsigned __match_any_sync(unsigned mask, T value) {
  return emu_match_any(mask, emu::to_bits(value));
}

#define EMU_REDUCE_SYNC(name, mode)                                                                    \
  EMU_INLINE unsigned name(unsigned mask, unsigned value) { return emu_reduce(mode, 0, mask, value); } \
  EMU_INLINE int name(unsigned mask, int value) { return int(emu_reduce(mode, 1, mask, unsigned(value))); }
EMU_REDUCE_SYNC(__reduce_add_sync, EMU_REDUCE_ADD)
EMU_REDUCE_SYNC(__reduce_min_sync, EMU_REDUCE_MIN)
EMU_REDUCE_SYNC(__reduce_max_sync, EMU_REDUCE_MAX)
EMU_REDUCE_SYNC(__reduce_and_sync, EMU_REDUCE_AND)
EMU_REDUCE_SYNC(__reduce_or_sync, EMU_REDUCE_OR)
EMU_REDUCE_SYNC(__reduce_xor_sync, EMU_REDUCE_XOR)
#undef EMU_REDUCE_SYNC
