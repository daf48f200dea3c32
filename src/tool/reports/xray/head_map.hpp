// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headgate::xray {

/// Averages a head's causal attention over T tokens to a map of M × M cells, M ≤ T, that fits on a page. Cell c of a
/// side covers the tokens cT/M … (c+1)T/M − 1.
class HeadMap {
 public:
  HeadMap(std::int64_t tokens, std::int64_t cells);

  static std::size_t planned_bytes(std::int64_t tokens, std::int64_t cells);

  /// Adds the weights of query `i` on the keys first … i. Each query is added once.
  void add_row(std::int64_t i, std::int64_t first, const float* weights);

  /// Returns the lower triangle of the map by rows, (M (M + 1) / 2). A cell holds the mean weight over its visible
  /// pairs, or 0 if it has none.
  std::vector<double> cells() const;
  /// Returns the mean weight of each key over the queries that see the key, (T).
  std::vector<double> received() const;

 private:
  std::int64_t size_;                  // M: cells per side
  std::vector<std::int32_t> cell_of_;  // (T) index of the cell that contains each token
  std::vector<double> sums_, counts_;  // sums and numbers of weights for each cell of the lower triangle
  std::vector<double> key_sums_, key_counts_;
};

/// Returns the indices of the `count` largest values, largest first. Among equal values the lowest index comes first.
std::vector<std::size_t> largest(const std::vector<double>& values, std::size_t count);

/// Encodes numbers in [0,1] as bytes, round(255 x), in base64. Clamps other numbers; NaN becomes 0.
std::string as_bytes(const std::vector<double>& values);
/// Encodes the square roots of numbers in [0,1] by as_bytes(), which keeps small weights distinguishable.
std::string as_roots(const std::vector<double>& values);

}  // namespace headgate::xray
