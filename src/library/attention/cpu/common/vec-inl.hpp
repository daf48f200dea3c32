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

/// True if the target has 32 vector registers (AVX-512, NEON) instead of 16.
inline constexpr bool kHas32Registers = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;

/// Register tile of a product: kMR rows by kNV vectors of accumulators. The tile, kNV vectors of b and one broadcast of
/// a fill the register file and hide the latency of FMA (4–5 cycles, two per cycle).
inline constexpr std::int64_t kMR = kHas32Registers ? 12 : 6;
inline constexpr std::int64_t kNV = 2;

/// Number of columns of a full panel.
template <typename T>
constexpr std::int64_t kNR = kNV* kLanes<T>;

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_VEC_INL_
