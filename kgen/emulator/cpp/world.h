// What is known of all clusters of a launch, as it passes from block to block through global memory: for each cluster
// up to which time the accesses of its actors are known (`seen`), and up to which a proxy fence has shown their
// ordinary writes to the asynchronous proxy (`shown`). The values are shared between OS threads, and so never change.
#pragma once

#include <stdint.h>

#include <memory>
#include <utility>
#include <vector>

namespace emu {

using Times = std::vector<uint32_t>;  // by actor of one cluster

class Known {
 public:
  bool empty() const { return !entries_; }
  bool holds(uint32_t cluster, unsigned actor, uint32_t time) const;
  // The times of a cluster's actors; null if nothing of it is known.
  const Times* of(uint32_t cluster) const;
  void join(const Known& other);
  void join(uint32_t cluster, Times times);
  bool covers(const Known& other) const;

 private:
  using Entry = std::pair<uint32_t, std::shared_ptr<const Times>>;
  std::shared_ptr<const std::vector<Entry>> entries_;  // ascending
};

struct World {
  Known seen, shown;

  bool empty() const { return seen.empty() && shown.empty(); }
  void join(const World& other) {
    seen.join(other.seen);
    shown.join(other.shown);
  }
  bool covers(const World& other) const { return seen.covers(other.seen) && shown.covers(other.shown); }
};

// `to` becomes the later of both, element by element; whether `a` is nowhere earlier than `b`.
void raise(Times& to, const Times& from);
bool covers(const Times& a, const Times& b);

}  // namespace emu
