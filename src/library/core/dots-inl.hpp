// SPDX-License-Identifier: Apache-2.0
// Helpers for vectors of bf16 numbers in AVX-512 BF16 (AVX-512 only).
#if defined(HEADGATE_CORE_DOTS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_CORE_DOTS_INL_
#undef HEADGATE_CORE_DOTS_INL_
#else
#define HEADGATE_CORE_DOTS_INL_
#endif

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/vec-inl.hpp"

#if HWY_TARGET == HWY_AVX3
#include <immintrin.h>
#endif

#undef HEADGATE_DOTS_ATTR
/// Function attribute for code that uses AVX-512 BF16 (Native16Unit::dots).
#define HEADGATE_DOTS_ATTR __attribute__((target(HWY_TARGET_STR ",avx512bf16")))

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of bf16 elements in an AVX-512 vector.
inline constexpr std::int64_t kDotLanes = 32;

#if HWY_TARGET == HWY_AVX3
/// Loads n ≤ 32 elements into a vector and fills the rest with zeros.
HWY_INLINE __m512i load_halves(const BFloat16* from, std::int64_t n) {
  const auto mask = static_cast<__mmask32>(n >= 32 ? ~0U : (1U << n) - 1U);
  return _mm512_maskz_loadu_epi16(mask, from);
}
#endif

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_CORE_DOTS_INL_
