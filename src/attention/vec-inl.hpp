// SPDX-License-Identifier: Apache-2.0
// Per-target vector helpers; included once per Highway target.
#if defined(HEADGATE_ATTENTION_VEC_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_VEC_INL_
#undef HEADGATE_ATTENTION_VEC_INL_
#else
#define HEADGATE_ATTENTION_VEC_INL_
#endif

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Tag = hn::ScalableTag<T>;

/// Lanes of one vector of T.
template <typename T>
constexpr std::size_t kLanes = hn::MaxLanes(Tag<T>());

/// Register tile of a product: kMR rows by kNV vectors of accumulators, plus kNV vectors and one broadcast. It fills
/// the register file (32 of AVX-512 and NEON, 16 elsewhere) and hides an FMA's latency (4–5 cycles, two a cycle).
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr std::size_t kMR = 12;
#else
inline constexpr std::size_t kMR = 6;
#endif
inline constexpr std::size_t kNV = 2;

/// Columns of a full panel.
template <typename T>
constexpr std::size_t kNR = kNV* kLanes<T>;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

inline constexpr double kLog2e = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

/// 2^x for x ≤ 128 (f64: 1024). Relative error below 1.7e-7 (f64: 4e-16). Exactly 0 for x ≤ −127 (f64: −1023) and for
/// −∞; NaN for NaN. Splits x = n + f with |f| ≤ ½, evaluates 2^f with the constant term held at 1, and adds n to the
/// exponent field: at the clamp f = 0 makes the field 0, hence an exact zero.
template <class D>
HWY_INLINE hn::Vec<D> exp2_fast(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const hn::RebindToUnsigned<D> du;
  if constexpr (sizeof(T) == 4) {
    const auto magic = hn::Set(d, 12582912.0F);  // 1.5 · 2^23: the sum's low mantissa bits hold round(x)
    x = hn::Max(hn::Set(d, -127.0F), x);
    const auto shifted = hn::Add(x, magic);
    const auto f = hn::Sub(x, hn::Sub(shifted, magic));
    // Minimax in relative error on [−½, ½] with the constant term 1: 9.2e-8 before rounding.
    auto p = hn::Set(d, 0x1.5bba14p-10F);
    p = hn::MulAdd(p, f, hn::Set(d, 0x1.3cea88p-7F));
    p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5F));
    p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3F));
    p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1F));
    p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
    return hn::BitCast(d, hn::Add(hn::BitCast(du, p), hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
  } else {
    const auto magic = hn::Set(d, 6755399441055744.0);  // 1.5 · 2^52
    x = hn::Max(hn::Set(d, -1023.0), x);
    const auto shifted = hn::Add(x, magic);
    const auto f = hn::Sub(x, hn::Sub(shifted, magic));
    // Taylor series, terms ln(2)^k / k!; the remainder on [−½, ½] is below 4e-18.
    constexpr double kTerms[] = {1.3691488853904128881e-12, 2.5678435993488205142e-11,
                                 4.4455382718708114976e-10, 7.0549116208011233299e-9,
                                 1.0178086009239699728e-7,  1.3215486790144309488e-6,
                                 1.5252733804059840280e-5,  1.5403530393381609954e-4,
                                 1.3333558146428443423e-3,  9.6181291076284771620e-3,
                                 5.5504108664821579953e-2,  2.4022650695910071233e-1,
                                 6.9314718055994530942e-1,  1.0};
    auto p = hn::Set(d, kTerms[0]);
    for (std::size_t k = 1; k < std::size(kTerms); ++k) p = hn::MulAdd(p, f, hn::Set(d, kTerms[k]));
    return hn::BitCast(d, hn::Add(hn::BitCast(du, p), hn::ShiftLeft<52>(hn::BitCast(du, shifted))));
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_VEC_INL_
