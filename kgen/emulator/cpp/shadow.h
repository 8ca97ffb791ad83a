// Shadow of a block's shared memory: who wrote and read each byte, and when; it finds uninitialised reads and races.
//
// Time is counted by the cluster's synchronisations. An access is ordered after an earlier one by another actor (a
// thread, or asynchronous copies and products: clock.h) if its thread has since synchronised with that actor, directly
// or through others: `knows`.
#pragma once

#include <stdint.h>

#include <vector>

namespace emu {

struct Block;
struct Lane;

// What asynchronous units take at a time.
constexpr unsigned kUnitBytes = 16;

class SharedShadow {
 public:
  // Forgets everything about offsets [from, bytes).
  void reset(const Block* block, unsigned bytes, unsigned from = 0);
  // An access of `bytes` at `offset`; `access` is a set of Access flags. Fails the launch on a fault.
  void access(Lane* lane, unsigned offset, unsigned bytes, int access, const void* pc);
  // Marks bytes as the destination of a cp.async under way (`lane` issued it), and as landed.
  void copy_issued(Lane* lane, unsigned offset, unsigned bytes, const void* pc);
  void copy_landed(Lane* lane, unsigned offset, unsigned bytes);
  // The same of a bulk copy issued by `lane`, which `actor` carries out.
  void bulk_issued(Lane* lane, unsigned offset, unsigned bytes, unsigned actor, const void* pc);
  void bulk_landed(unsigned offset, unsigned bytes, unsigned actor, uint32_t time);
  // `actor` will read `count` units at `offsets` from `time` on. `lanes` issued it together: each must know what it
  // reads.
  void units_read(Lane* const* lanes, unsigned lane_count, const unsigned* offsets, unsigned count, unsigned actor,
                  uint32_t time, const void* pc);
  // Marks the 8 bytes of an mbarrier, which no other access may touch.
  void set_barrier(Lane* lane, unsigned offset, const void* pc);

 private:
  enum Flag : uint16_t {
    kSplit = 1,
    kInFlight = 2,
    kAtomicWrite = 4,
    kCrowd = 8,         // several warps have read: nobody knows which
    kList = 16,         // several have read: `readers` is the first in `lists_`
    kForeignRead = 32,  // by an actor that is no thread of this block
    kBarrier = 64,
  };

  struct Cell {
    uint32_t write_time;  // 0: never written
    uint32_t read_time;   // the latest read
    uint32_t readers;     // actors 32 * reader_warp + i
    uint16_t writer;      // an actor
    uint16_t reader_warp;
    uint16_t flags;
    uint16_t unused;
  };
  // One of several readers of a cell.
  struct Reader {
    uint32_t time, lanes, next;
    uint16_t warp;
  };

  bool superseded(const Lane* lane, const Cell& cell) const;
  bool own_thread(unsigned actor) const { return actor - first_actor_ < end_actor_ - first_actor_; }
  // Whether nobody has written the cell, or a __syncthreads (or the thread itself) stands for the order.
  bool met_write(const Lane* lane, const Cell& cell) const;
  void check_state(const Lane* lane, const Cell& cell, unsigned offset, int access, const void* pc) const;
  void check_readers(const Lane* lane, const Cell& cell, unsigned offset, const void* pc) const;
  void note_read(const Lane* lane, Cell& cell, unsigned actor, uint32_t now);
  void note_plain_read(const Lane* lane, Cell& cell, uint32_t now);
  void forget_readers(Cell& cell);
  void visit(Lane* lane, Cell& cell, unsigned offset, int access, const void* pc);
  template <class Visit>
  void each(unsigned offset, unsigned bytes, Visit visit);
  template <class Visit>
  void runs(unsigned offset, unsigned bytes, Cell& before, Cell& after, Visit visit);
  [[noreturn]] void race(const Lane* lane, unsigned offset, const char* now, const char* before, unsigned other,
                         const void* pc) const;

  const Block* block_ = nullptr;
  unsigned first_actor_ = 0, end_actor_ = 0;
  std::vector<Cell> words_;  // one for 4 bytes, unless split
  std::vector<Cell> bytes_;  // made when the first word is split
  std::vector<Reader> lists_;
  uint32_t free_ = 0;
};

}  // namespace emu
