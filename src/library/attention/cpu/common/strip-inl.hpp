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

/// Columns of a key block that a strip of query rows visits. Column 0 is the first key of the block.
/// Strips visit whole panels of keys. If a row does not see a key, the score is −∞.
struct StripColumns {
  std::int64_t begin = 0, end = 0;      ///< columns of keys that at least one row sees
  std::int64_t c0 = 0, c1 = 0;          ///< begin and end, rounded outwards to whole panels
  std::int64_t whole0 = 0, whole1 = 0;  ///< columns of whole panels in which every row sees every key
  bool empty() const { return begin >= end; }
};

/// A strip of a tile, together with the key block that the tile visits.
/// The strip has query rows r … r + rows of the tile. The block begins at key j0.
template <typename T>
struct Strip {
  std::int64_t r = 0, rows = 0, j0 = 0;
  T* scores = nullptr;  ///< scores (rows, columns of the block), row stride Plan::kScoreStride
  StripColumns at;      ///< columns of the block that the strip visits
};

// In the functions below, Kernel computes one query tile.
// It cuts the tile into bands of kBandRows rows, and bands into strips of kStripRows rows. It has these members:
//   Plan: its plan, with kStripRows, kBandRows, kBlock and kPanel.
//   BlockStrip: the type of its strips, which is Strip or derived from Strip.
//   visibility(): the keys that each query sees.
//   query(r): the query in row r of the tile.
//   columns(s): the columns of the block that strip s visits. The caller has set s.r, s.rows and s.j0.
//   scores(m): the address of the scores of row m of a band for the current key block.
//   begin(s): prepares strip s for the panels of the block.
//   panel(s, c): processes the panel at column c, which may be outside the columns that strip s visits.
//   end(strips, count): finishes the block for `count` strips of a band.

/// Fills in `s` for the strip that begins at row r of a tile, and for the key block that begins at key j0.
/// Rows [band, end) of the tile are the band that contains the strip.
template <class Kernel>
void set_strip(const Kernel& kernel, typename Kernel::BlockStrip& s, std::int64_t j0, std::int64_t r, std::int64_t band,
               std::int64_t end) {
  using Plan = typename Kernel::Plan;
  constexpr std::int64_t kBlock = Plan::kBlock, kPanel = Plan::kPanel;
  s.r = r;
  s.rows = std::min(Plan::kStripRows, end - r);
  s.j0 = j0;
  s.scores = kernel.scores(r - band);
  const std::int64_t first = kernel.query(r), last = kernel.query(r + s.rows - 1);
  const KeyRange columns = kernel.columns(s);
  s.at = {columns.begin, columns.end};
  if (s.at.empty()) return;
  const auto column = [&](std::int64_t j) { return std::clamp<std::int64_t>(j - j0, 0, kBlock); };
  const auto down = [&](std::int64_t c) { return c / kPanel * kPanel; };
  const auto up = [&](std::int64_t c) { return down(c + kPanel - 1); };
  s.at.c0 = down(s.at.begin);
  s.at.c1 = up(s.at.end);
  const auto visited = [&](std::int64_t c) { return std::clamp(c, s.at.c0, s.at.c1); };
  s.at.whole0 = visited(up(column(kernel.visibility().row(last).begin)));
  s.at.whole1 = visited(down(column(kernel.visibility().row(first).end)));
}

/// Visits all key blocks that contain keys of `seen`, with a tile of `count` rows.
/// Cuts the tile into bands of `band` rows.
/// All strips of a band process one panel before the next panel, so that the panel stays in the first-level cache.
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
        set_strip(kernel, s, j0, first, r, end);
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

/// Returns which keys of key block `number` must be packed if queries see the keys `seen`.
/// Extends the range downwards to the start of a panel. The range never exceeds seen.end.
inline KeyRange packed_keys(const KeyRange& seen, std::int64_t number, std::int64_t block, std::int64_t panel) {
  return {std::max(number * block, seen.begin / panel * panel), std::min((number + 1) * block, seen.end)};
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_STRIP_INL_
