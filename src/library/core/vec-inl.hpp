// SPDX-License-Identifier: Apache-2.0
// Per-target vector helpers; included once per Highway target.
#if defined(HEADGATE_CORE_VEC_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_CORE_VEC_INL_
#undef HEADGATE_CORE_VEC_INL_
#else
#define HEADGATE_CORE_VEC_INL_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "library/core/convert.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Tag = hn::ScalableTag<T>;

/// Number of lanes of a vector of T.
template <typename T>
constexpr std::int64_t kLanes = hn::MaxLanes(Tag<T>());

/// Returns n / by, rounded up, for n ≥ 0.
constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) { return n / by + (n % by != 0 ? 1 : 0); }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return divide_up(n, to) * to; }

/// Loads a vector of bf16 and widens it to f32.
HWY_INLINE hn::Vec<Tag<float>> load_bf16(const BFloat16* from) {
  const Tag<float> d;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, to_f32(*from));
#else
  const hn::RebindToUnsigned<Tag<float>> wide;
  const hn::Rebind<std::uint16_t, Tag<float>> half;
  const auto bits = hn::PromoteTo(wide, hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
#endif
}

/// Stores a vector of f32 as bf16. Rounds like to_bf16().
HWY_INLINE void store_bf16(hn::Vec<Tag<float>> x, BFloat16* to) {
#if HWY_TARGET == HWY_SCALAR
  *to = to_bf16(hn::GetLane(x));
#else
  const hn::RebindToUnsigned<Tag<float>> du;
  const hn::RebindToSigned<Tag<float>> di;
  const hn::Rebind<std::uint16_t, Tag<float>> half;
  const auto bits = hn::BitCast(du, x);
  const auto high = hn::ShiftRight<16>(bits);
  const auto bias = hn::Add(hn::And(high, hn::Set(du, 1U)), hn::Set(du, 0x7FFFU));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, bias));
  const auto quiet_nan = hn::Or(high, hn::Set(du, 0x40U));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(x));
  const auto result = hn::IfThenElse(is_nan, quiet_nan, rounded);
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(di, result)), half, reinterpret_cast<std::uint16_t*>(to));
#endif
}

/// Loads a vector of T from memory of type T or bf16.
template <typename T, typename Stored>
HWY_INLINE hn::Vec<Tag<T>> load_as(const Stored* from) {
  if constexpr (std::is_same_v<Stored, BFloat16>) {
    return load_bf16(from);
  } else {
    return hn::LoadU(Tag<T>(), from);
  }
}
template <typename T, typename Stored>
HWY_INLINE void store_as(hn::Vec<Tag<T>> x, Stored* to) {
  if constexpr (std::is_same_v<Stored, BFloat16>) {
    store_bf16(x, to);
  } else {
    hn::StoreU(x, Tag<T>(), to);
  }
}

inline constexpr double kLog2e = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

/// Returns max(low, x), or NaN if x is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_least(D d, hn::TFromD<D> low, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(hn::Set(d, low), x);  // MAXPS returns its second operand, here x, if either operand is NaN
#else
  const V bound = hn::Set(d, low);
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
#endif
}

/// Returns min(high, x), or NaN if x is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_most(D d, hn::TFromD<D> high, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Min(hn::Set(d, high), x);  // MINPS returns its second operand, here x, if either operand is NaN
#else
  const V bound = hn::Set(d, high);
  return hn::IfThenElse(hn::Gt(x, bound), bound, x);
#endif
}

/// Returns x · log2(e), the exponent y with 2^y = e^x. If x is finite, clamps y to finite numbers of type T.
template <typename T>
HWY_INLINE T in_log2_units(double x) {
  constexpr double kLargest = static_cast<double>(std::numeric_limits<T>::max());
  const double scaled = x * kLog2e;
  return static_cast<T>(std::isfinite(x) ? std::clamp(scaled, -kLargest, kLargest) : x);
}

/// Clamps y to finite numbers where x is finite. Returns x where x is infinite or NaN. y is a function of x that may
/// have overflowed.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V keep_finite(D d, V x, V y) {
  const auto largest = hn::Set(d, std::numeric_limits<hn::TFromD<D>>::max());
  return hn::IfThenElse(hn::Le(hn::Abs(x), largest), hn::Clamp(y, hn::Neg(largest), largest), x);
}

/// Multiplies scores or biases by log2(e). Finite elements stay finite, because −∞ would hide a key.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V in_log2_units(D d, V bias) {
  return keep_finite(d, bias, hn::Mul(bias, hn::Set(d, static_cast<hn::TFromD<D>>(kLog2e))));
}

/// Returns −∞ where the mask is 0, and x elsewhere.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V hide_masked(D d, V x, V mask) {
  return hn::IfThenElse(hn::Eq(mask, hn::Zero(d)), hn::Set(d, -std::numeric_limits<hn::TFromD<D>>::infinity()), x);
}

/// Returns a + b for two addends of a score. The result is −∞, which hides the key, only where a or b is −∞. A sum of
/// finite numbers is clamped to finite numbers.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V add_visible(D d, V a, V b) {
  const auto hidden = hn::Set(d, -std::numeric_limits<hn::TFromD<D>>::infinity());
  const auto largest = hn::Set(d, std::numeric_limits<hn::TFromD<D>>::max());
  const auto are_finite = hn::And(hn::Le(hn::Abs(a), largest), hn::Le(hn::Abs(b), largest));
  const V exact = hn::Add(a, b);
  const V sum = hn::IfThenElse(are_finite, hn::Clamp(exact, hn::Neg(largest), largest), exact);
  return hn::IfThenElse(hn::Or(hn::Eq(a, hidden), hn::Eq(b, hidden)), hidden, sum);
}

/// A log-sum-exp times log2(e), split into a rounded value and the remainder: e^lse = 2^value · 2^rest.
template <typename T>
struct SplitLse {
  T value, rest;
};

/// Splits lse · log2(e) into `value`, rounded to T, and the remainder `rest`. rest is 0 in these cases:
///
///   - lse was stored in a dtype other than f64, and has thus lost the remainder.
///   - |rest| < 2⁻¹⁴, which hardly changes 2^value.
///   - |lse| ≥ 2⁴⁰, where f64 cannot hold the remainder.
template <typename T>
inline SplitLse<T> split_lse(double lse, DType stored) {
  constexpr double kLeast = 0x1p-14, kMost = 0x1p40;
  const T value = in_log2_units<T>(lse);
  const double rest = lse * kLog2e - static_cast<double>(value);
  const bool matters = stored == DType::f64 && std::abs(lse) < kMost && std::abs(rest) >= kLeast;
  return {value, matters ? static_cast<T>(rest) : T{0}};
}

/// True if exp2_fast() accepts any x and returns ∞ where 2^x overflows. Otherwise x must be below 127.5 (f64: 1023.5).
template <typename T>
inline constexpr bool kExp2Saturates = HWY_TARGET == HWY_AVX3 && sizeof(T) == 4;

#if HWY_TARGET == HWY_AVX3
/// Computes exp2_fast() with fewer instructions. One AVX-512 instruction returns the fraction f = x − ⌊x⌋. Another
/// multiplies 2^f by 2^⌊x⌋.
HWY_INLINE hn::Vec<Tag<float>> exp2_scaled(hn::Vec<Tag<float>> x) {
  const Tag<float> d;
  // VREDUCEPS returns x − ⌊x⌋, and 0 for ±∞.
  const hn::Vec<Tag<float>> f{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEG_INF)};
  // Minimax polynomial for the relative error of 2^f, with a constant term of 1. The error is 8.5e-8 before rounding.
  auto q = hn::Set(d, 0x1.e9b604p-10F);
  q = hn::MulAdd(q, f, hn::Set(d, 0x1.2769bap-7F));
  q = hn::MulAdd(q, f, hn::Set(d, 0x1.c91ecep-5F));
  q = hn::MulAdd(q, f, hn::Set(d, 0x1.ebdb4ap-3F));
  q = hn::MulAdd(q, f, hn::Set(d, 0x1.62e4bap-1F));
  q = hn::MulAdd(q, f, hn::Set(d, 1.0F));
  // Returns 0 instead of subnormal results, which take hundreds of cycles.
  const __mmask16 normal = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return hn::Vec<Tag<float>>{_mm512_maskz_scalef_ps(normal, q.raw, x.raw)};
}
#endif

/// Returns 2^x for x < 127.5 (f64: 1023.5). The relative error is below 2e-7 (f64: 4e-16); for x < −126 the absolute
/// error is below 2^−126. Returns exactly 0 for x ≤ −127 (f64: −1023) and for −∞, and NaN for NaN.
///
/// Splits x = n + f with |f| ≤ ½, and returns 2^n + 2^n f q(f), where 2^f ≈ 1 + f q(f). First raises x below −127 (f64:
/// −1023) to this bound. The exponent field of 2^n is then zero, and the result is exactly 0.
template <class D>
HWY_INLINE hn::Vec<D> exp2_fast([[maybe_unused]] D d, hn::Vec<D> x) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<D, Tag<float>>) return exp2_scaled(x);
#endif
  using T = hn::TFromD<D>;
  const hn::RebindToUnsigned<D> du;
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr int kMantissaBits = kSingle ? 23 : 52;
  constexpr int kBias = kSingle ? 127 : 1023;
  // kMagic is 1.5 · 2^kMantissaBits + kBias. The low mantissa bits of x + kMagic are round(x) + kBias, which is the
  // exponent field of 2^round(x).
  constexpr T kMagic = (kSingle ? T{12582912.0} : T{6755399441055744.0}) + kBias;
  x = at_least(d, static_cast<T>(-kBias), x);
  const auto magic = hn::Set(d, kMagic);
  const auto shifted = hn::Add(x, magic);
  const auto f = hn::Sub(x, hn::Sub(shifted, magic));
  const auto power = hn::BitCast(d, hn::ShiftLeft<kMantissaBits>(hn::BitCast(du, shifted)));
  hn::Vec<D> q;
  if constexpr (kSingle) {
    // Minimax polynomial for the relative error of 2^f on [−½, ½], with a constant term of 1. The error is 9.2e-8
    // before rounding.
    q = hn::Set(d, 0x1.5bba14p-10F);
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.3cea88p-7F));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.c6b752p-5F));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.ebf9bcp-3F));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.62e42ap-1F));
  } else {
    // Taylor series with coefficients ln(2)^k / k!. The remainder on [−½, ½] is below 4e-18.
    constexpr double kTerms[] = {1.3691488853904128881e-12, 2.5678435993488205142e-11, 4.4455382718708114976e-10,
                                 7.0549116208011233299e-9,  1.0178086009239699728e-7,  1.3215486790144309488e-6,
                                 1.5252733804059840280e-5,  1.5403530393381609954e-4,  1.3333558146428443423e-3,
                                 9.6181291076284771620e-3,  5.5504108664821579953e-2,  2.4022650695910071233e-1,
                                 6.9314718055994530942e-1};
    q = hn::Set(d, kTerms[0]);
    for (std::size_t k = 1; k < std::size(kTerms); ++k) q = hn::MulAdd(q, f, hn::Set(d, kTerms[k]));
  }
  return hn::MulAdd(q, hn::Mul(f, power), power);
}

/// Returns 1 / x for 1 ≤ x ≤ 2 within one unit in the last place, or NaN for NaN. With AVX-512, avoids f32 division,
/// which occupies the multiplier for as long as eight multiply-adds.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V inverse_of(D d, V x) {
  const V one = hn::Set(d, hn::TFromD<D>{1});
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<D, Tag<float>>) {
    // ApproximateReciprocal() is accurate to 14 bits. One Newton step doubles the number of accurate bits.
    const V guess = hn::ApproximateReciprocal(x);
    return hn::MulAdd(guess, hn::NegMulAdd(guess, x, one), guess);
  }
#endif
  return hn::Div(one, x);
}

/// Computes σ(z) and 1 − σ(z) with full relative accuracy in both tails. Uses e = exp(−|z|), which cannot overflow.
template <class D, class V = hn::Vec<D>>
struct SigmoidPair {
  V sigma, complement, e;
  HWY_INLINE SigmoidPair(D d, V z) {
    using T = hn::TFromD<D>;
    e = exp2_fast(d, hn::Mul(hn::Abs(z), hn::Set(d, static_cast<T>(-kLog2e))));
    const V inverse = inverse_of(d, hn::Add(hn::Set(d, T{1}), e));
    const V small = hn::Mul(e, inverse);
    const auto positive = hn::Ge(z, hn::Zero(d));
    sigma = hn::IfThenElse(positive, inverse, small);
    complement = hn::IfThenElse(positive, small, inverse);
  }
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_CORE_VEC_INL_
