// SPDX-License-Identifier: Apache-2.0
// Finds the keys with the largest weights of each query of a tile; included once per Highway target.
#if defined(HEADGATE_ATTENTION_TOP_KEYS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_TOP_KEYS_INL_
#undef HEADGATE_ATTENTION_TOP_KEYS_INL_
#else
#define HEADGATE_ATTENTION_TOP_KEYS_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/strip-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Replaces x by exp2(x) for n elements. Rounds n up to whole vectors.
template <typename T>
HWY_NOINLINE void exponentials_in_place(T* HWY_RESTRICT x, std::int64_t n) {
  const Tag<T> d;
  for (std::int64_t j = 0; j < n; j += kLanes<T>) hn::StoreU(exp2_fast(d, hn::LoadU(d, x + j)), d, x + j);
}

/// The `count` keys with the largest scores, for each row of a query tile.
/// Holds score − lse of these keys, largest first. Of keys with equal scores, the smallest index comes first.
template <typename T>
class TopKeys {
 public:
  /// Integer as wide as T, so that a vector of keys has as many lanes as a vector of scores.
  using Index = hn::TFromD<hn::RebindToSigned<Tag<T>>>;
  /// Exponent that stands for −∞, because exp2_fast(kZeroPower) is exactly 0.
  static constexpr T kZeroPower = sizeof(T) == 4 ? T{-127} : T{-1023};

  /// Shapes of scores and keys: (rows, count rounded up to whole vectors).
  TopKeys(const View<T, 2>& scores, const View<Index, 2>& keys, std::int64_t count)
      : scores_(scores), keys_(keys), count_(count) {
    for (std::int64_t lane = 0; lane < kLanes<T>; ++lane)
      lane_before_[lane] = static_cast<Index>(std::max<std::int64_t>(lane - 1, 0));
  }

  bool wanted() const { return count_ > 0; }

  /// Removes the top keys of all rows. Entries without a key have index −1.
  void reset() const {
    if (!wanted()) return;
    std::fill_n(scores_.data, scores_.count(), kZeroPower);
    std::fill_n(keys_.data, keys_.count(), Index{-1});
  }

  /// Inserts the keys of a panel into the top keys of row r, if their scores are large enough.
  /// The panel begins at key j.
  /// `larger` holds, for each lane, the larger score of the panel's two vectors.
  HWY_INLINE void insert_panel(std::int64_t r, const T* HWY_RESTRICT x, std::int64_t j, hn::Vec<Tag<T>> larger) const {
    const Tag<T> d;
    const auto threshold = hn::Set(d, scores_(r, count_ - 1));
    if (!hn::AllFalse(d, hn::Gt(larger, threshold))) insert_keys(r, x, j, threshold);
  }

  /// Inserts the keys of the first block that row r sees.
  /// To insert few keys, skips those with scores below a threshold.
  /// `maxima` holds the largest score of the block in each lane. Let K be the number of top keys.
  /// The threshold is at most the K-th largest element of `maxima`.
  /// At least K keys reach that score, so that no skipped key is a top key.
  /// If that element is below kZeroPower, or if there are fewer than K lanes, the threshold is kZeroPower.
  /// All keys with weights above 0 reach kZeroPower.
  HWY_NOINLINE void insert_first_block(std::int64_t r, const T* HWY_RESTRICT row, std::int64_t j0,
                                       const StripColumns& at, const T* HWY_RESTRICT maxima) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    const auto lanes = hn::Load(d, maxima);
    auto larger = hn::Zero(d);  // number of lanes with a larger maximum, for each lane
    for (std::int64_t l = 0; l < kN; ++l) {
      larger = hn::Add(larger, hn::IfThenElseZero(hn::Gt(hn::Set(d, maxima[l]), lanes), hn::Set(d, T{1})));
    }
    const auto enough = hn::Ge(larger, hn::Set(d, static_cast<T>(count_ - 1)));
    const auto threshold = hn::MaxOfLanes(d, hn::IfThenElse(enough, lanes, hn::Set(d, kZeroPower)));
    for (std::int64_t c = at.c0; c < at.c1; c += kNR<T>) {
      const auto highest = hn::Max(hn::Load(d, row + c), hn::Load(d, row + c + kN));
      if (!hn::AllFalse(d, hn::Ge(highest, threshold))) insert_keys(r, row + c, j0 + c, threshold);
    }
  }

  /// Turns the top keys of row r from column numbers into keys: column c becomes keys[c].
  void renumber(std::int64_t r, const std::int64_t* keys) const {
    Index* const own = keys_.at(r);
    for (std::int64_t n = 0; n < count_ && own[n] >= 0; ++n) own[n] = static_cast<Index>(keys[own[n]]);
  }

  /// Writes the top keys of row r of the tile to row i of `to`.
  void write_keys(const HeadRows<void>& to, std::int64_t i, std::int64_t r) const {
    for (std::int64_t n = 0; n < count_; ++n) {
      if (to.dtype == DType::i32) {
        *to.template at<std::int32_t>(i, n, 1) = static_cast<std::int32_t>(keys_(r, n));
      } else {
        *to.template at<std::int64_t>(i, n, 1) = keys_(r, n);
      }
    }
  }

  /// Replaces the scores of row r by weights, or by NaN if `nan` is true. Writes the weights to row i of `to`.
  void write_weights(const HeadRows<void>& to, std::int64_t i, std::int64_t r, bool nan) const {
    T* weights = scores_.at(r);
    exponentials_in_place(weights, count_);
    if (nan) std::fill_n(weights, count_, std::numeric_limits<T>::quiet_NaN());
    store_row(to, weights, i, 0, count_);
  }

 private:
  /// Inserts the keys of a panel whose scores reach the threshold. The panel begins at key j.
  /// Inserts keys in ascending order, so that of equal scores the first one ranks first.
  HWY_NOINLINE void insert_keys(std::int64_t r, const T* HWY_RESTRICT x, std::int64_t j,
                                hn::Vec<Tag<T>> threshold) const {
    const Tag<T> d;
    const hn::RebindToSigned<Tag<T>> di;
    constexpr std::int64_t kN = kLanes<T>;
    T* HWY_RESTRICT scores = scores_.at(r);
    Index* HWY_RESTRICT keys = keys_.at(r);
    const auto up = hn::SetTableIndices(d, lane_before_);
    const auto up_keys = hn::SetTableIndices(di, lane_before_);
    const auto first_lane = hn::FirstN(d, 1);
    std::uint64_t candidates = lanes_from(hn::Load(d, x), threshold) | lanes_from(hn::Load(d, x + kN), threshold) << kN;
    for (; candidates != 0; candidates &= candidates - 1) {
      const std::int64_t c = __builtin_ctzll(candidates);
      const auto score = hn::Set(d, x[c]);
      const auto key = hn::Set(di, static_cast<Index>(j + c));
      // Inserts the new key into the sorted list, one vector at a time.
      // Entries with a score at or above the new score stay. The new key replaces the first smaller entry.
      // This entry and all later ones move back by one.
      T last_score = std::numeric_limits<T>::infinity();
      Index last_key = -1;
      for (std::int64_t at = 0; at < scores_.shape[1]; at += kN) {
        const auto here = hn::Load(d, scores + at);
        const auto keys_here = hn::Load(di, keys + at);
        const auto before = hn::IfThenElse(first_lane, hn::Set(d, last_score), hn::TableLookupLanes(here, up));
        const auto keys_before = hn::IfThenElse(hn::RebindMask(di, first_lane), hn::Set(di, last_key),
                                                hn::TableLookupLanes(keys_here, up_keys));
        last_score = scores[at + kN - 1];
        last_key = keys[at + kN - 1];
        const auto moves = hn::Gt(score, here);
        const auto follows = hn::Gt(score, before);
        hn::Store(hn::IfThenElse(moves, hn::IfThenElse(follows, before, score), here), d, scores + at);
        hn::Store(hn::IfThenElse(hn::RebindMask(di, moves),
                                 hn::IfThenElse(hn::RebindMask(di, follows), keys_before, key), keys_here),
                  di, keys + at);
      }
    }
  }

  /// Returns a bit mask. Bit l is set if lane l of x is at least the threshold.
  static HWY_INLINE std::uint64_t lanes_from(hn::Vec<Tag<T>> x, hn::Vec<Tag<T>> threshold) {
    std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(Tag<T>(), hn::Ge(x, threshold), bytes);
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes, sizeof(bits));
    return bits & ((std::uint64_t{1} << kLanes<T>)-1);
  }

  View<T, 2> scores_;
  View<Index, 2> keys_;
  std::int64_t count_;
  HWY_ALIGN Index lane_before_[kLanes<T>];  // for each lane, the index of the lane before it; 0 for lane 0
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_TOP_KEYS_INL_
