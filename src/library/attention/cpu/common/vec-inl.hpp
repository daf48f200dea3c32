// SPDX-License-Identifier: Apache-2.0
// The register tile of products; included once per Highway target.
#if defined(HEADGATE_ATTENTION_VEC_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_VEC_INL_
#undef HEADGATE_ATTENTION_VEC_INL_
#else
#define HEADGATE_ATTENTION_VEC_INL_
#endif

#include <cstdint>

#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Whether there are 32 vector registers, as in AVX-512 and NEON, and not 16.
inline constexpr bool kHas32Registers = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;

/// Register tile of a product: kMR rows by kNV vectors of accumulators, plus kNV vectors and one broadcast. It fills
/// the register file and hides an FMA's latency (4–5 cycles, two a cycle).
inline constexpr std::int64_t kMR = kHas32Registers ? 12 : 6;
inline constexpr std::int64_t kNV = 2;

/// Columns of a full panel.
template <typename T>
constexpr std::int64_t kNR = kNV* kLanes<T>;

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_VEC_INL_
