// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/visibility.hpp"

namespace headgate {

/// Columns of a key block that a strip of query rows visits, counted from the block's first key. Strips visit whole
/// panels of keys; the score of a key hidden from its row is −∞.
struct StripColumns {
  std::int64_t begin = 0, end = 0;      ///< columns of keys that at least one row sees
  std::int64_t c0 = 0, c1 = 0;          ///< the same columns rounded to whole panels
  std::int64_t whole0 = 0, whole1 = 0;  ///< whole panels in which every row sees every key
  bool empty() const { return begin >= end; }
};

/// Returns the columns that queries first … last visit in the `block` keys from j0 on. `keys` is the range of keys that
/// these queries visit, `panel` the number of keys per panel.
inline StripColumns strip_columns(const Visibility& visibility, const KeyRange& keys, std::int64_t first,
                                  std::int64_t last, std::int64_t j0, std::int64_t block, std::int64_t panel) {
  const auto column = [&](std::int64_t j) { return std::clamp<std::int64_t>(j - j0, 0, block); };
  const auto down = [&](std::int64_t c) { return c / panel * panel; };
  const auto up = [&](std::int64_t c) { return down(c + panel - 1); };
  StripColumns s;
  s.begin = column(keys.begin);
  s.end = column(keys.end);
  if (s.empty()) return s;
  s.c0 = down(s.begin);
  s.c1 = up(s.end);
  s.whole0 = up(column(visibility.row(last).begin));
  s.whole1 = down(column(visibility.row(first).end));
  return s;
}

/// Returns the keys of block `number` to pack if queries see the keys `seen`. The range is extended down to the start
/// of a panel; other keys that no query sees are not read.
inline KeyRange packed_keys(const KeyRange& seen, std::int64_t number, std::int64_t block, std::int64_t panel) {
  return {std::max(number * block, seen.begin / panel * panel), std::min((number + 1) * block, seen.end)};
}

}  // namespace headgate
