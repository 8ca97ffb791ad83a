// The arithmetic of coalescing and bank conflicts.
#include "traffic.h"

#include <algorithm>

namespace emu {

void Traffic::record(unsigned lane, uintptr_t address, unsigned bytes, bool shared, const void* pc) {
  Site& site = sites_[pc];
  site.bytes = bytes;
  site.shared = shared;
  unsigned turn = site.count[lane]++;
  if (turn >= site.groups.size()) site.groups.resize(turn + 1);
  Group& group = site.groups[turn];
  group.lanes |= 1u << lane;
  group.address[lane] = address;
}

static unsigned distinct(std::vector<uintptr_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return unsigned(values.size());
}

// Wavefronts of a shared access: 128 bytes at a time, and as many as the fullest bank has different words.
static unsigned wavefronts(uint32_t lanes, const uintptr_t* address, unsigned bytes, uint64_t& ideal) {
  unsigned together = bytes <= 4 ? 32 : 128 / bytes, sum = 0;
  for (unsigned first = 0; first < 32; first += together) {
    std::vector<uintptr_t> words;
    for (unsigned l = first; l < first + together; ++l) {
      if (!(lanes >> l & 1)) continue;
      for (unsigned at = 0; at < bytes; at += 4) words.push_back((address[l] + at) / 4);
    }
    if (words.empty()) continue;
    distinct(words);
    unsigned banks[32] = {};
    for (uintptr_t word : words) ++banks[word % 32];
    sum += *std::max_element(banks, banks + 32);
    ++ideal;
  }
  return sum;
}

static unsigned sectors(uint32_t lanes, const uintptr_t* address, unsigned bytes, uint64_t& ideal) {
  std::vector<uintptr_t> touched, starts;
  for (unsigned l = 0; l < 32; ++l) {
    if (!(lanes >> l & 1)) continue;
    starts.push_back(address[l]);
    for (uintptr_t sector = address[l] / 32; sector <= (address[l] + bytes - 1) / 32; ++sector)
      touched.push_back(sector);
  }
  ideal += (distinct(starts) * uint64_t(bytes) + 31) / 32;
  return distinct(touched);
}

void Traffic::flush(SiteTotals& totals) {
  for (auto& [pc, site] : sites_) {
    SiteTotal& total = totals[pc];
    total.shared = site.shared;
    total.bytes = int32_t(site.bytes);
    for (const Group& group : site.groups) {
      total.transactions += site.shared ? wavefronts(group.lanes, group.address, site.bytes, total.ideal)
                                        : sectors(group.lanes, group.address, site.bytes, total.ideal);
    }
    site.groups.clear();
    std::fill_n(site.count, 32, 0);
  }
}

}  // namespace emu
