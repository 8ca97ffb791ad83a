// Shadow of a block's shared memory: who wrote and read each byte, and when; it finds uninitialised reads and races.
//
// Time is counted by the block's synchronisations. An access is ordered after an earlier one by another thread if its
// thread has since synchronised with that thread, directly (barrier, __syncwarp) or through others: `ordered` below.
#pragma once

#include <stdint.h>

#include <vector>

namespace emu {

struct Lane;

class SharedShadow {
 public:
  // Forgets everything about offsets [from, bytes).
  void reset(unsigned bytes, unsigned from = 0);
  // An access of `bytes` at `offset`; `access` is a set of Access flags. Fails the launch on a fault.
  void access(Lane* lane, unsigned offset, unsigned bytes, int access, const void* pc);
  // Marks bytes as the destination of a cp.async under way (`lane` issued it), and as landed.
  void copy_issued(Lane* lane, unsigned offset, unsigned bytes, const void* pc);
  void copy_landed(Lane* lane, unsigned offset, unsigned bytes);

 private:
  static constexpr uint16_t kManyWarps = 0xffff;
  enum Flag : uint8_t { kSplit = 1, kInFlight = 2, kAtomicWrite = 4 };

  struct Cell {
    uint32_t write_time;  // 0: never written
    uint32_t read_time;   // the latest read
    uint32_t readers;     // lanes of `reader_warp`
    uint16_t writer;      // thread
    uint16_t reader_warp : 15;
    uint16_t many_warps : 1;
    uint8_t flags;
  };

  static bool superseded(const Lane* lane, const Cell& cell);
  void visit(Lane* lane, Cell& cell, unsigned offset, int access, const void* pc);
  template <class Visit>
  void each(unsigned offset, unsigned bytes, Visit visit);

  std::vector<Cell> words_;  // one for 4 bytes, unless split
  std::vector<Cell> bytes_;
};

}  // namespace emu
