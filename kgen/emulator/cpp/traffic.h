// How well the lanes of a warp share memory transactions: sectors of global, wavefronts of shared memory
// (Options.traffic).
//
// Lanes run one after another here, so the accesses that a GPU would make together are found afterwards: the n-th time
// that each lane of a warp comes to the same instruction since the warp last synchronised.
#pragma once

#include <stdint.h>

#include <unordered_map>
#include <vector>

namespace emu {

// What one instruction cost in all. Python reads it (kernel.py): keep both in step.
struct SiteTotal {
  uint64_t code;          // offset into the kernel's shared object
  uint64_t transactions;  // sectors of 32 bytes, or wavefronts
  uint64_t ideal;         // the fewest that would move as many distinct bytes
  int32_t shared, bytes;
};

using SiteTotals = std::unordered_map<const void*, SiteTotal>;

// The accesses of one warp since it last synchronised.
class Traffic {
 public:
  void record(unsigned lane, uintptr_t address, unsigned bytes, bool shared, const void* pc);
  // Adds all that is recorded to `totals`.
  void flush(SiteTotals& totals);

 private:
  struct Group {
    uint32_t lanes;
    uintptr_t address[32];
  };
  struct Site {
    unsigned bytes;
    bool shared;
    unsigned count[32];
    std::vector<Group> groups;
  };
  std::unordered_map<const void*, Site> sites_;
};

}  // namespace emu
