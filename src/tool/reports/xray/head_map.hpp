// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headgate::xray {

/// Reduces a head's causal attention matrix (T,T) to a map of M × M cells that fits on a page, M ≤ T.
/// Cell (r,c) holds the mean weight over the queries of interval r and the keys of interval c.
/// Interval c covers the tokens from cT/M to (c+1)T/M − 1, with both quotients rounded down.
class HeadMap {
 public:
  HeadMap(std::int64_t tokens, std::int64_t cells);

  static std::size_t planned_bytes(std::int64_t tokens, std::int64_t cells);

  /// Adds the weights of query `i` on keys `first` to `i`. Must be called at most once per query.
  void add_row(std::int64_t i, std::int64_t first, const float* weights);

  /// Returns the lower triangle of the map, row by row, (M (M + 1) / 2).
  /// Each cell is the mean weight of the (query, key) pairs that were added to it, or 0 if there were none.
  std::vector<double> cells() const;
  /// Returns for each key its mean weight over the queries that see it, (T).
  std::vector<double> received() const;

 private:
  std::int64_t size_;                  // M, the number of cells per side
  std::vector<std::int32_t> cell_of_;  // (T) index of the interval (row or column of cells) of each token
  std::vector<double> sums_, counts_;  // sum and number of the weights in each cell of the lower triangle
  std::vector<double> key_sums_, key_counts_;
};

/// Returns the indices of the `count` largest values, in descending order of the values.
/// Among equal values, the lower index comes first.
std::vector<std::size_t> largest(const std::vector<double>& values, std::size_t count);

/// Encodes each number x in [0,1] as the byte round(255 x), and the bytes in base64. Clamps x to [0,1]; NaN becomes 0.
std::string as_bytes(const std::vector<double>& values);
/// Encodes the square root of each number in [0,1] by as_bytes(). The root keeps small weights distinguishable.
std::string as_roots(const std::vector<double>& values);

}  // namespace headgate::xray
