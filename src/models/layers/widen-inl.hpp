// SPDX-License-Identifier: Apache-2.0
// Loads elements of a matrix (f32, f64 or bf16) as vectors of the type in which products are summed; included once per
// Highway target.
#if defined(HEADGATE_LAYERS_WIDEN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LAYERS_WIDEN_INL_
#undef HEADGATE_LAYERS_WIDEN_INL_
#else
#define HEADGATE_LAYERS_WIDEN_INL_
#endif

#include "library/core/convert.hpp"
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

template <class Lanes, typename T>
HWY_INLINE auto widened(const Lanes& lanes, const T* from) {
  return lanes.load(from);
}

HWY_INLINE Vec<float> widened(const Whole<float>& /*lanes*/, const BFloat16* from) { return load_bf16(from); }

HWY_INLINE Vec<float> widened(const Tail<float>& lanes, const BFloat16* from) {
  const Tag<float> d;
  HWY_ALIGN float lane[kLanes<float>] = {};
  for (std::size_t i = 0; i < lanes.count; ++i) lane[i] = to_f32(from[i]);
  return hn::Load(d, lane);
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LAYERS_WIDEN_INL_
