// SPDX-License-Identifier: Apache-2.0
// How the softmax in one pass follows a larger score; included once per Highway target.
#if defined(HEADGATE_ATTENTION_RAISE_MAXIMUM_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_RAISE_MAXIMUM_INL_
#undef HEADGATE_ATTENTION_RAISE_MAXIMUM_INL_
#else
#define HEADGATE_ATTENTION_RAISE_MAXIMUM_INL_
#endif

#include <cstdint>

#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// A row's running maximum takes in its next n scores; its sums (one vector) and its output (width: a multiple of the
/// lanes) follow. n: a multiple of two vectors.
template <typename T>
HWY_INLINE void raise_maximum(T& running_max, const T* HWY_RESTRICT scores, std::int64_t n, T* HWY_RESTRICT sums,
                              T* HWY_RESTRICT out, std::int64_t width) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  auto max0 = hn::Set(d, running_max);
  auto max1 = max0;
  for (std::int64_t j = 0; j < n; j += 2 * kN) {
    max0 = hn::Max(max0, hn::Load(d, scores + j));
    max1 = hn::Max(max1, hn::Load(d, scores + j + kN));
  }
  const T new_max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  if (new_max == running_max) return;
  const auto decay = exp2_fast(d, hn::Sub(hn::Set(d, running_max), hn::Set(d, new_max)));
  running_max = new_max;
  hn::Store(hn::Mul(decay, hn::Load(d, sums)), d, sums);
  for (std::int64_t x = 0; x < width; x += kN) hn::Store(hn::Mul(decay, hn::Load(d, out + x)), d, out + x);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_RAISE_MAXIMUM_INL_
