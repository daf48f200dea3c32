// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/visibility.hpp"

namespace headgate {

/// What a strip of query rows visits of a key block, in columns from the block's first key. Whole panels of keys are
/// visited; a score whose row does not see its key is −∞.
struct StripColumns {
  std::int64_t begin = 0, end = 0;      ///< the keys that some row sees
  std::int64_t c0 = 0, c1 = 0;          ///< the whole panels that hold those
  std::int64_t whole0 = 0, whole1 = 0;  ///< of those, the panels of which every row sees every key
  bool empty() const { return begin >= end; }
};

/// Queries first … last, of whose keys `keys` are visited, beside the `block` keys from j0 on, in panels of `panel`.
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

/// The keys of block `number` that are packed where `seen` are seen: from a whole panel on. Keys that no query sees
/// stay unread, but for those that share a panel with one that is seen.
inline KeyRange packed_keys(const KeyRange& seen, std::int64_t number, std::int64_t block, std::int64_t panel) {
  return {std::max(number * block, seen.begin / panel * panel), std::min((number + 1) * block, seen.end)};
}

}  // namespace headgate
