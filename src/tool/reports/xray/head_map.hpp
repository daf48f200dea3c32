// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headgate::xray {

/// A head's causal attention over T tokens, gathered row by row: what fits a page. Of M ≤ T cells, cell c stands for
/// the tokens cT/M … (c+1)T/M − 1.
class HeadMap {
 public:
  HeadMap(std::int64_t tokens, std::int64_t cells);

  static std::size_t planned_bytes(std::int64_t tokens, std::int64_t cells);

  /// The weights of query `i` on the keys first … i. Each query comes once.
  void add_row(std::int64_t i, std::int64_t first, const float* weights);

  /// (M (M + 1) / 2): the lower triangle by rows, the mean weight over a cell's pairs that see each other; 0 without.
  std::vector<double> cells() const;
  /// (T): the mean weight that a key has from the queries that see it.
  std::vector<double> received() const;

 private:
  std::int64_t size_;                  // cells of a side
  std::vector<std::int32_t> cell_of_;  // (T)
  std::vector<double> sums_, counts_;  // of the lower triangle
  std::vector<double> key_sums_, key_counts_;
};

/// Where the `count` largest are, largest first; of equal ones the first.
std::vector<std::size_t> largest(const std::vector<double>& values, std::size_t count);

/// Numbers of [0,1] as bytes, round(255 x), in base64; what lies outside is cut off, NaN is 0.
std::string as_bytes(const std::vector<double>& values);
/// The same of their square roots, which keeps small weights apart.
std::string as_roots(const std::vector<double>& values);

}  // namespace headgate::xray
