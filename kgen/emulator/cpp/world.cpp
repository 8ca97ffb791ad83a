// Joining and asking what is known of other clusters.
#include "world.h"

#include <algorithm>

namespace emu {

void raise(Times& to, const Times& from) {
  if (to.size() < from.size()) to.resize(from.size());
  uint32_t* __restrict__ a = to.data();
  const uint32_t* __restrict__ b = from.data();
  for (size_t i = 0, end = from.size(); i < end; ++i) a[i] = a[i] < b[i] ? b[i] : a[i];
}

bool covers(const Times& a, const Times& b) {
  constexpr size_t kAtOnce = 32;  // without a branch between them, so that vector instructions compare them
  const size_t end = b.size();
  if (a.size() < end) return false;
  size_t i = 0;
  for (; i + kAtOnce <= end; i += kAtOnce) {
    const uint32_t *own = a.data() + i, *other = b.data() + i;
    uint32_t earlier = 0;
    for (size_t j = 0; j < kAtOnce; ++j) earlier |= own[j] < other[j];
    if (earlier) return false;
  }
  for (; i < end; ++i) {
    if (a[i] < b[i]) return false;
  }
  return true;
}

const Times* Known::of(uint32_t cluster) const {
  if (!entries_) return nullptr;
  auto less = [](const Entry& entry, uint32_t number) { return entry.first < number; };
  auto at = std::lower_bound(entries_->begin(), entries_->end(), cluster, less);
  return at != entries_->end() && at->first == cluster ? at->second.get() : nullptr;
}

bool Known::holds(uint32_t cluster, unsigned actor, uint32_t time) const {
  const Times* times = of(cluster);
  return times != nullptr && actor < times->size() && time <= (*times)[actor];
}

bool Known::covers(const Known& other) const {
  if (!other.entries_ || entries_ == other.entries_) return true;
  if (!entries_ || entries_->size() < other.entries_->size()) return false;
  auto own = entries_->begin();
  for (const Entry& entry : *other.entries_) {
    while (own != entries_->end() && own->first < entry.first) ++own;
    if (own == entries_->end() || own->first != entry.first) return false;
    if (own->second != entry.second && !emu::covers(*own->second, *entry.second)) return false;
  }
  return true;
}

void Known::join(const Known& other) {
  if (covers(other)) return;
  if (other.covers(*this)) {
    entries_ = other.entries_;
    return;
  }
  auto made = std::make_shared<std::vector<Entry>>(*entries_);
  for (const Entry& entry : *other.entries_) {
    auto less = [](const Entry& one, uint32_t number) { return one.first < number; };
    auto at = std::lower_bound(made->begin(), made->end(), entry.first, less);
    if (at == made->end() || at->first != entry.first) {
      made->insert(at, entry);
    } else if (at->second != entry.second && !emu::covers(*at->second, *entry.second)) {
      auto times = std::make_shared<Times>(*at->second);
      raise(*times, *entry.second);
      at->second = times;
    }
  }
  entries_ = made;
}

void Known::join(uint32_t cluster, Times times) {
  Known one;
  one.entries_ = std::make_shared<std::vector<Entry>>(1, Entry(cluster, std::make_shared<Times>(std::move(times))));
  join(one);
}

}  // namespace emu
