#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

// Greedy non-maximum suppression, box by box: the indices of those that stay, by descending score and then -1, and how
// many they are. Equal scores keep their order, NaN comes first. In float as torchvision's kernel rounds it; products
// are made in double, so that no compiler fuses others than the one that is meant.
template <typename Boxes, typename Scores>
std::vector<std::vector<double>> nms_reference(const Boxes& boxes, const Scores& scores, float iou_threshold) {
  struct Box {
    float x1, y1, x2, y2, area;
  };
  const auto product = [](float a, float b) { return static_cast<float>(static_cast<double>(a) * b); };
  const auto overlap = [&](const Box& kept, const Box& box) {
    const float width = std::max(0.0f, std::min(kept.x2, box.x2) - std::max(kept.x1, box.x1));
    const float height = std::max(0.0f, std::min(kept.y2, box.y2) - std::max(kept.y1, box.y1));
    const float shared = product(width, height);
    return shared / (std::fma(box.x2 - box.x1, box.y2 - box.y1, kept.area) - shared) > iou_threshold;
  };
  std::vector<int64_t> order(scores.size(0));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
    return std::isnan(scores(i)) ? !std::isnan(scores(j)) : scores(i) > scores(j);
  });
  std::vector<Box> kept;
  std::vector<double> indices;
  for (int64_t i : order) {
    const auto at = [&](int k) { return static_cast<float>(boxes(i, k)); };
    const Box box{at(0), at(1), at(2), at(3), product(at(2) - at(0), at(3) - at(1))};
    if (std::any_of(kept.begin(), kept.end(), [&](const Box& other) { return overlap(other, box); })) continue;
    kept.push_back(box);
    indices.push_back(static_cast<double>(i));
  }
  indices.resize(order.size(), -1.0);
  return {indices, {static_cast<double>(kept.size())}};
}
