// SPDX-License-Identifier: Apache-2.0
// Walks a query tile over the key blocks that its rows see, in strips of rows; included once per Highway target.
#if defined(HEADGATE_ATTENTION_STRIP_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_STRIP_INL_
#undef HEADGATE_ATTENTION_STRIP_INL_
#else
#define HEADGATE_ATTENTION_STRIP_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "library/attention/cpu/common/visibility.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Columns of a key block that a strip of query rows visits, counted from the block's first key. Strips visit whole
/// panels of keys; the score of a key hidden from its row is −∞.
struct StripColumns {
  std::int64_t begin = 0, end = 0;      ///< columns of keys that at least one row sees
  std::int64_t c0 = 0, c1 = 0;          ///< the same columns rounded to whole panels
  std::int64_t whole0 = 0, whole1 = 0;  ///< whole panels in which every row sees every key
  bool empty() const { return begin >= end; }
};

/// Query rows r … r + rows of a tile, paired with the key block that begins at key j0.
template <typename T>
struct Strip {
  std::int64_t r = 0, rows = 0, j0 = 0;
  T* scores = nullptr;  ///< (rows, columns of the block), row stride Plan::kScoreStride
  StripColumns at;      ///< columns of the block that the rows see, and their panels
};

// The functions below take a Kernel, which processes one query tile. It provides:
//   Plan                its plan, with kStripRows, kBandRows, kBlock, kPanel;
//   BlockStrip          its strip: Strip, or a type derived from it;
//   visibility()        the keys that each query sees;
//   query(r)            the query in row r of the tile;
//   visited(i0, i1)     the keys that queries [i0, i1) visit;
//   scores(m)           where the scores of row m of a band against the key block are stored;
//   begin(s)            prepares a strip for the block's panels;
//   panel(s, c)         processes the panel at column c; it is called for panels that the strip does not visit, too;
//   end(strips, count)  finishes the block for `count` strips of a band.

/// Sets `s` to the strip from row r of the band of rows [band, end), paired with the key block at j0.
template <class Kernel>
void place_strip(const Kernel& kernel, typename Kernel::BlockStrip& s, std::int64_t j0, std::int64_t r,
                 std::int64_t band, std::int64_t end) {
  using Plan = typename Kernel::Plan;
  constexpr std::int64_t kBlock = Plan::kBlock, kPanel = Plan::kPanel;
  s.r = r;
  s.rows = std::min(Plan::kStripRows, end - r);
  s.j0 = j0;
  s.scores = kernel.scores(r - band);
  const std::int64_t first = kernel.query(r), last = kernel.query(r + s.rows - 1);
  const KeyRange keys = kernel.visited(first, last + 1);
  const auto column = [&](std::int64_t j) { return std::clamp<std::int64_t>(j - j0, 0, kBlock); };
  const auto down = [&](std::int64_t c) { return c / kPanel * kPanel; };
  const auto up = [&](std::int64_t c) { return down(c + kPanel - 1); };
  s.at = {column(keys.begin), column(keys.end)};
  if (s.at.empty()) return;
  s.at.c0 = down(s.at.begin);
  s.at.c1 = up(s.at.end);
  s.at.whole0 = up(column(kernel.visibility().row(last).begin));
  s.at.whole1 = down(column(kernel.visibility().row(first).end));
}

/// Processes the `count` rows of a tile, in bands of `band` rows, against the blocks of the keys `seen`. The strips of
/// a band take turns at each panel, so that all strips but the first find the panel in L1.
template <class Kernel>
void visit_blocks(const Kernel& kernel, const KeyRange& seen, std::int64_t count, std::int64_t band) {
  using Plan = typename Kernel::Plan;
  typename Kernel::BlockStrip strips[Plan::kBandRows / Plan::kStripRows];
  for (std::int64_t j0 = seen.begin / Plan::kBlock * Plan::kBlock; j0 < seen.end; j0 += Plan::kBlock) {
    for (std::int64_t r = 0; r < count; r += band) {
      const std::int64_t end = std::min(r + band, count);
      std::int64_t taken = 0, c0 = Plan::kBlock, c1 = 0;
      for (std::int64_t first = r; first < end; first += Plan::kStripRows) {
        auto& s = strips[taken];
        place_strip(kernel, s, j0, first, r, end);
        if (s.at.empty()) continue;
        kernel.begin(s);
        c0 = std::min(c0, s.at.c0);
        c1 = std::max(c1, s.at.c1);
        ++taken;
      }
      for (std::int64_t c = c0; c < c1; c += Plan::kPanel) {
        for (std::int64_t n = 0; n < taken; ++n) kernel.panel(strips[n], c);
      }
      if (taken > 0) kernel.end(strips, taken);
    }
  }
}

/// Returns the keys of block `number` to pack if queries see the keys `seen`. The range is extended down to the start
/// of a panel; other keys that no query sees are not read.
inline KeyRange packed_keys(const KeyRange& seen, std::int64_t number, std::int64_t block, std::int64_t panel) {
  return {std::max(number * block, seen.begin / panel * panel), std::min((number + 1) * block, seen.end)};
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_STRIP_INL_
