// SPDX-License-Identifier: Apache-2.0
// Scores of bf16 queries and keys in the dot products of AVX-512 BF16.
#if defined(HEADGATE_ATTENTION_DOT_SCORES_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_DOT_SCORES_INL_
#undef HEADGATE_ATTENTION_DOT_SCORES_INL_
#else
#define HEADGATE_ATTENTION_DOT_SCORES_INL_
#endif

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "library/attention/cpu/bf16/native16.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/decode/cpu_tuning.hpp"
#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/attention/cpu/x86/dots-inl.hpp"
#include "library/core/convert.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Which scores are dot products of bf16, and their operands: where q and k are bf16 and the CPU's dot products are
/// faster than products in f32. They are as good: products of two bf16 are exact, and sums f32. Of the factor of
/// ScoreRules a power of two is multiplied into the queries, which is exact, and the rest into the scores.
class DotScores {
 public:
  /// factor: of ScoreRules.
  DotScores(const ForwardProblem& p, bool bf16_keys, double factor) : p_(p) {
    if (!bf16_keys || p.inputs.q.dtype != DType::bf16 || p.inputs.k.strides[3] != 1 || !std::isnormal(factor)) return;
    const int exponent = std::ilogb(factor);
    available_ = std::abs(exponent) <= kMostExponent && native16_unit(p.context.target) == Native16Unit::dots;
    factor_of_queries_ = static_cast<float>(std::ldexp(1.0, exponent));
    factor_of_scores_ = static_cast<float>(std::ldexp(factor, -exponent));
  }

  bool available() const { return available_; }
  /// Whether they suit the queries of a sequence. With few rows memory is the limit. The instructions take numbers
  /// below 2⁻¹²⁶ for 0, which shows in no score, since it moves none by more than D · 2⁻⁶⁶, while the elements of q are
  /// 0 or between bounds.
  bool suit(const Sequence& sequence) const {
    if (!available_ || p_.group * sequence.T < least_rows_) return false;
    for (std::int64_t h = 0; h < p_.Hq; ++h) {
      const HeadRows<const void> q = query_rows(p_.inputs.q, sequence, h);
      for (std::int64_t i = 0; i < sequence.T; ++i) {
        const BFloat16* row = q.at<BFloat16>(i, 0, p_.D);
        if (!(q.stride == 1 ? all_between_bounds(row, 1) : all_between_bounds(row, q.stride))) return false;
      }
    }
    return true;
  }

  /// to[0 .. D) = query i times its part of the factor.
  void load_query(BFloat16* HWY_RESTRICT to, const HeadRows<const void>& q, std::int64_t i) const {
    const BFloat16* row = q.at<BFloat16>(i, 0, p_.D);
    for (std::int64_t x = 0; x < p_.D; ++x) to[x] = to_bf16(to_f32(row[x * q.stride]) * factor_of_queries_);
  }
  float factor_of_scores() const { return factor_of_scores_; }

 private:
  static constexpr int kMostExponent = 20;

  /// Whether all elements of a row are 0 or from 2⁻¹⁰⁰ to below 2⁴⁰.
  HWY_INLINE bool all_between_bounds(const BFloat16* row, std::int64_t stride) const {
    constexpr unsigned kBias = 127, kMantissaBits = 7;
    constexpr std::uint16_t kLeast = (kBias - 100) << kMantissaBits, kBeyond = (kBias + 40) << kMantissaBits;
    std::uint16_t outside = 0;
    for (std::int64_t x = 0; x < p_.D; ++x) {
      const auto magnitude = static_cast<std::uint16_t>(row[x * stride].bits & 0x7FFFU);
      const bool inside = magnitude == 0 || (magnitude >= kLeast && magnitude < kBeyond);
      outside |= static_cast<std::uint16_t>(!inside);
    }
    return outside == 0;
  }

  const ForwardProblem& p_;
  bool available_ = false;
  std::int64_t least_rows_ = tuning_of_cpu().least_dot_rows;
  float factor_of_queries_ = 1, factor_of_scores_ = 1;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_DOT_SCORES_INL_
