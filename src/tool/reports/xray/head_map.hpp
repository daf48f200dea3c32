// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headgate::xray {

/// Averages a head's causal attention over T tokens, row by row, to a map that fits a page. Of M ≤ T cells a side, cell
/// c stands for the tokens cT/M … (c+1)T/M − 1.
class HeadMap {
 public:
  HeadMap(std::int64_t tokens, std::int64_t cells);

  static std::size_t planned_bytes(std::int64_t tokens, std::int64_t cells);

  /// Adds the weights of query `i` on the keys first … i. Each query is added once.
  void add_row(std::int64_t i, std::int64_t first, const float* weights);

  /// Returns (M (M + 1) / 2): the lower triangle by rows, the mean weight over a cell's visible pairs; 0 if it has
  /// none.
  std::vector<double> cells() const;
  /// Returns (T): the mean weight that a key has from the queries that see it.
  std::vector<double> received() const;

 private:
  std::int64_t size_;                  // cells a side
  std::vector<std::int32_t> cell_of_;  // (T)
  std::vector<double> sums_, counts_;  // of the lower triangle
  std::vector<double> key_sums_, key_counts_;
};

/// Returns the indices of the `count` largest values, largest first; of equal ones the first.
std::vector<std::size_t> largest(const std::vector<double>& values, std::size_t count);

/// Returns numbers of [0,1] as bytes, round(255 x), in base64. Clamps numbers outside; NaN becomes 0.
std::string as_bytes(const std::vector<double>& values);
/// Returns their square roots in the same way, which keeps small weights apart.
std::string as_roots(const std::vector<double>& values);

}  // namespace headgate::xray
