// SPDX-License-Identifier: Apache-2.0
// Packs keys and values as right operands of bf16 products (AVX-512 only).
#if defined(HEADGATE_ATTENTION_PACK_PAIRS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_PACK_PAIRS_INL_
#undef HEADGATE_ATTENTION_PACK_PAIRS_INL_
#else
#define HEADGATE_ATTENTION_PACK_PAIRS_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/core/bf16_products-inl.hpp"
#include "library/core/view.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Packs rows first … first + n of k or v as columns of PairPanels, padded to whole squares.
/// `buffer` is scratch for 16 rows.
inline void pack_pairs_of_transpose(BFloat16* to, const KeyRows& from, std::int64_t first, std::int64_t n,
                                    const View<BFloat16, 2>& buffer) {
  const std::int64_t panel_size = kTileCols * round_up(from.cols, kTileDepth);
  for (std::int64_t r0 = 0; r0 < whole_squares(n); r0 += kTileCols, to += panel_size) {
    const std::int64_t count = std::clamp<std::int64_t>(n - r0, 0, kTileCols);
    const BFloat16* rows[kTileCols];
    from.each_row<BFloat16>(first + r0, count, [&](std::int64_t r, const BFloat16* row) {
      rows[r] = dense_halves(row, from.stride(), from.cols, buffer.at(r));
    });
    pairs_of_transpose(to, rows, count, from.cols);
  }
}

/// Packs rows first … first + n of k or v as rows of PairPanels, padded to whole squares.
/// The first of them becomes row `row` of the panels, which must be an even number.
inline void pack_pairs_of_rows(const PairPanels& to, std::int64_t row, const KeyRows& from, std::int64_t first,
                               std::int64_t n, const View<BFloat16, 2>& buffer) {
  for (std::int64_t r = 0; r < whole_squares(n); r += 2) {
    const BFloat16* rows[2] = {nullptr, nullptr};
    from.each_row<BFloat16>(first + r, std::clamp<std::int64_t>(n - r, 0, 2), [&](std::int64_t x, const BFloat16* at) {
      rows[x] = dense_halves(at, from.stride(), from.cols, buffer.at(x));
    });
    pairs_of_rows(to.at(0, row + r), to.panel_stride, rows[0], rows[1], from.cols);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#endif  // HEADGATE_ATTENTION_PACK_PAIRS_INL_
