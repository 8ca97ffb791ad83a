#include <cstdint>
#include <vector>

// Sums of each row's elements up to each column.
template <typename Tensor>
std::vector<std::vector<double>> prefix_sum_reference(const Tensor& x) {
  std::vector<double> sums;
  for (int64_t row = 0; row < x.size(0); ++row) {
    double sum = 0.0;
    for (int64_t column = 0; column < x.size(1); ++column) sums.push_back(sum += x(row, column));
  }
  return {sums};
}
