// SPDX-License-Identifier: Apache-2.0
// Turns a row of scores into weights; included once per Highway target.
#if defined(HEADGATE_ATTENTION_ROW_WEIGHTS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_ROW_WEIGHTS_INL_
#undef HEADGATE_ATTENTION_ROW_WEIGHTS_INL_
#else
#define HEADGATE_ATTENTION_ROW_WEIGHTS_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "library/core/sum_blocks.hpp"
#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Softmax state of a row of scores: maximum m, and sum Σ exp2(s − m).
template <typename T>
struct RowSoftmax {
  T max, sum;
};

/// Returns the largest of n scores. Unless `key_scales` is null, first multiplies the scores by `key_scales` in place.
/// Processes whole vectors.
template <typename T>
T largest_of(T* HWY_RESTRICT s, std::int64_t n, const T* HWY_RESTRICT key_scales) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  auto even = hn::Set(d, -std::numeric_limits<T>::infinity()), odd = even;
  const auto run = [&](const auto& score) HWY_ATTR {
    std::int64_t j = 0;
    for (; j + 4 * kN <= n; j += 4 * kN) {
      even = hn::Max(even, hn::Max(score(j), score(j + kN)));
      odd = hn::Max(odd, hn::Max(score(j + 2 * kN), score(j + 3 * kN)));
    }
    for (; j < n; j += kN) even = hn::Max(even, score(j));
  };
  if (key_scales == nullptr) {
    run([&](std::int64_t j) HWY_ATTR { return hn::Load(d, s + j); });
  } else {
    run([&](std::int64_t j) HWY_ATTR {
      const auto scaled = hn::Mul(hn::Load(d, s + j), hn::Load(d, key_scales + j));
      hn::Store(scaled, d, s + j);
      return scaled;
    });
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(even, odd)));
}

/// Replaces n scores s by exp2(s · key_scale − maximum) · value_scale. Both scales differ from score to score.
/// A null `key_scales` or `value_scales` stands for scales of 1. Processes whole vectors.
template <typename T>
RowSoftmax<T> scores_to_weights(T* HWY_RESTRICT s, std::int64_t n, const T* key_scales,
                                const T* HWY_RESTRICT value_scales) {
  const Tag<T> d;
  const T max = largest_of(s, n, key_scales);
  // The maximum may be −∞ although a score is NaN, because max() may drop NaN. exp2_fast propagates NaN.
  const auto shift = hn::Set(d, max == -std::numeric_limits<T>::infinity() ? T{0} : max);
  auto total = hn::Zero(d);
  const auto run = [&](const auto& weight) HWY_ATTR {
    for (std::int64_t first = 0; first < n; first += kSplitSumKeys) {
      auto block = hn::Zero(d);
      for (std::int64_t j = first; j < std::min(first + kSplitSumKeys, n); j += kLanes<T>) {
        const auto e = exp2_fast(d, hn::Sub(hn::Load(d, s + j), shift));
        hn::Store(weight(e, j), d, s + j);
        block = hn::Add(block, e);
      }
      total = hn::Add(total, block);
    }
  };
  if (value_scales == nullptr) {
    run([](auto e, std::int64_t) HWY_ATTR { return e; });
  } else {
    run([&](auto e, std::int64_t j) HWY_ATTR { return hn::Mul(e, hn::Load(d, value_scales + j)); });
  }
  return {max, hn::GetLane(hn::SumOfLanes(d, total))};
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_ROW_WEIGHTS_INL_
