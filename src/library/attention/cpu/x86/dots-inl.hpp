// SPDX-License-Identifier: Apache-2.0
// Vectors of bf16 numbers in AVX-512 BF16; for the target AVX-512 alone.
#if defined(HEADGATE_ATTENTION_DOTS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_DOTS_INL_
#undef HEADGATE_ATTENTION_DOTS_INL_
#else
#define HEADGATE_ATTENTION_DOTS_INL_
#endif

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/vec-inl.hpp"

#if HWY_TARGET == HWY_AVX3
#include <immintrin.h>
#endif

#undef HEADGATE_DOTS_ATTR
/// For functions that use Native16Unit::dots, beside what all code of the target may use.
#define HEADGATE_DOTS_ATTR __attribute__((target(HWY_TARGET_STR ",avx512bf16")))

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Elements of a vector of bf16 in AVX-512.
inline constexpr std::int64_t kDotLanes = 32;

#if HWY_TARGET == HWY_AVX3
/// n ≤ 32 elements from `from` on, zeros behind them.
HWY_INLINE __m512i load_halves(const BFloat16* from, std::int64_t n) {
  const auto mask = static_cast<__mmask32>(n >= 32 ? ~0U : (1U << n) - 1U);
  return _mm512_maskz_loadu_epi16(mask, from);
}
#endif

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_DOTS_INL_
