// Shadow of global memory that a kernel may write to: who accessed each element last, of all blocks; it finds accesses
// that no synchronisation orders, whatever order the blocks happened to run in.
//
// An access is ordered after an earlier one if its thread knows of it (clock.h). Atomics need no order among
// themselves; a store that comes after one of them at the same address comes after those that were before it too. Of
// accesses since the last ordinary store that are not ordered among themselves, the latest eight count.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <vector>

#include "world.h"

namespace emu {

struct Buffer;
struct Lane;

// Memory that starts as zeros and takes room only where it is touched.
class Sparse {
 public:
  explicit Sparse(size_t bytes);
  Sparse(Sparse&& other) noexcept;
  ~Sparse();
  explicit operator bool() const { return data_ != nullptr; }
  unsigned char* data() const { return data_; }

 private:
  unsigned char* data_;
  size_t bytes_;
};

class GlobalShadow {
 public:
  // Of `bytes` from `begin` on, in elements of `unit` bytes (a power of two); `shared` by several OS threads.
  GlobalShadow(uint64_t begin, uint64_t bytes, unsigned unit, bool shared);
  bool ready() const { return bool(cells_); }
  // An access; fails the launch where it is not ordered after an earlier one.
  void access(Lane* lane, uint64_t address, unsigned bytes, int access, const Buffer& buffer, const void* pc);
  void leave(uint64_t address, const World& world, bool replaces);
  World find(uint64_t address);

 private:
  enum Kind : uint8_t { kNone, kPlainRead, kStrongRead, kStrongWrite };
  // By lanes of a warp at one time.
  struct Touch {
    uint32_t time, cluster, lanes;
    uint16_t warp;
    Kind kind;
  };
  struct Cell {
    uint32_t time, cluster;  // of the last ordinary store; 0: none
    uint16_t actor;
    uint8_t bytes;    // of the element, as a mask
    uint8_t stored;   // by TMA
    uint32_t record;  // of the stripe: more touches than `touch`, the first since that store
    Touch touch;
  };
  static constexpr int kMore = 7;
  struct Record {
    int count;
    Touch more[kMore];
    World left;
  };
  // What no two OS threads may use at once: the cells of every 64th page, and their records.
  struct alignas(64) Stripe {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    std::vector<Record> records;
    std::vector<uint32_t> free;
  };
  // What an access clashes with.
  struct Clash {
    const char* before;  // null: with nothing
    uint32_t cluster, time;
    unsigned actor;
    uint64_t offset;
    bool proxy;
  };

  Cell& cell(uint64_t number) const { return reinterpret_cast<Cell*>(cells_.data())[number]; }
  Stripe& stripe(uint64_t offset) { return stripes_[(offset >> 12) % kStripes]; }
  Record& record_of(Stripe& stripe, Cell& cell);
  void forget(Stripe& stripe, Cell& cell);
  bool check(Lane* lane, Stripe& stripe, Cell& cell, unsigned mask, int access, Clash& clash);
  bool check_touches(Lane* lane, Stripe& stripe, Cell& cell, Kind kind, bool stores, Clash& clash);
  void note(Lane* lane, Stripe& stripe, Cell& cell, Kind kind);
  [[noreturn]] void fail_at(Lane* lane, const Clash& clash, int access, const Buffer& buffer, const void* pc) const;

  static constexpr int kStripes = 64;
  uint64_t begin_;
  unsigned shift_;  // of `unit`
  bool shared_;
  Sparse cells_;
  Stripe stripes_[kStripes];
};

}  // namespace emu
