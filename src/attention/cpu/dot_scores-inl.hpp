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

#include "attention/cpu/cpu_tuning.hpp"
#include "attention/cpu/dots-inl.hpp"
#include "attention/cpu/native16.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/stored_rows-inl.hpp"
#include "core/convert.hpp"
#include "core/view.hpp"

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

#if HWY_TARGET == HWY_AVX3
/// sums[r][k] += the dot products, in each lane of two elements, of vectors of kRows queries and kKeys keys.
template <std::int64_t kRows, std::int64_t kKeys>
HEADGATE_DOTS_ATTR inline __attribute__((always_inline)) void add_dots(hn::Vec<Tag<float>> (&sums)[kRows][kKeys],
                                                                       const BFloat16* HWY_RESTRICT q,
                                                                       const __m512i (&key)[kKeys]) {
  const Tag<float> d;
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    const auto query = in_register(hn::Load(d, reinterpret_cast<const float*>(q + r * kDotLanes)));
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) {
      sums[r][k].raw =
          _mm512_dpbf16_ps(sums[r][k].raw, reinterpret_cast<__m512bh>(query.raw), reinterpret_cast<__m512bh>(key[k]));
    }
  }
}

/// As score_tile.
template <std::int64_t kRows, std::int64_t kKeys, bool kAsk, std::int64_t s_stride>
HEADGATE_DOTS_ATTR inline __attribute__((always_inline)) void dot_tile(const BFloat16* HWY_RESTRICT q,
                                                                       const StoredRows<BFloat16>& keys,
                                                                       std::int64_t first, std::int64_t columns,
                                                                       float* HWY_RESTRICT s) {
  static_assert(kDotLanes * sizeof(BFloat16) == kLine_bytes);
  hn::Vec<Tag<float>> sums[kRows][kKeys];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) sums[r][k] = hn::Zero(Tag<float>());
  }
  const BFloat16* row[kKeys];
  HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) row[k] = keys.rows[first + k];
  const BFloat16* const* coming = keys.rows + keys.ahead;
  std::int64_t t = first / kKeys * divide_up(columns, kDotLanes);
  __m512i key[kKeys];
  std::int64_t x = 0;
  for (; x + kDotLanes <= columns; x += kDotLanes) {
    if constexpr (kAsk) ask_in_step<kKeys>(coming, t++, keys.into_first_level);
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) key[k] = _mm512_loadu_si512(row[k] + x);
    add_dots(sums, q + x * kRows, key);
  }
  if (x < columns) {
    if constexpr (kAsk) ask_in_step<kKeys>(coming, t, keys.into_first_level);
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) key[k] = load_halves(row[k] + x, columns - x);
    add_dots(sums, q + x * kRows, key);
  }
  store_sums<float>(sums, s, s_stride);
}

/// As score_rows, times `factor`, of keys with `columns` elements; `queries`: packed in vectors of kDotLanes, zeros
/// behind `columns`.
template <std::int64_t s_stride>
HEADGATE_DOTS_ATTR HWY_NOINLINE void dot_score_rows(const View<float, 2>& scores, const View<BFloat16, 2>& queries,
                                                    const StoredRows<BFloat16>& keys, std::int64_t columns,
                                                    std::int64_t n, float factor) {
  assert(scores.strides[0] == s_stride);
  for (std::int64_t j = 0; j < n; j += kTileKeys) {
    const StoredRows<BFloat16> rows = keys.from(j);
    row_tiles(queries.shape[0], [&](auto tile, std::int64_t r) HEADGATE_DOTS_ATTR {
      constexpr std::int64_t kKeys = tile == kHighRows ? kHighKeys : kTileKeys;
      const BFloat16* q = queries.at(r);
      float* s = scores.at(r) + j;
      HWY_UNROLL(2) for (std::int64_t k = 0; k < kTileKeys; k += kKeys) {
        if (r == 0 && keys.ahead > 0) {
          dot_tile<tile, kKeys, true, s_stride>(q, rows, k, columns, s + k);
        } else {
          dot_tile<tile, kKeys, false, s_stride>(q, rows, k, columns, s + k);
        }
      }
    });
  }
  const Tag<float> d;
  for (std::int64_t r = 0; r < scores.shape[0]; ++r) {
    float* HWY_RESTRICT s = scores.at(r);
    for (std::int64_t j = 0; j < n; j += kLanes<float>) {
      hn::Store(hn::Mul(hn::Load(d, s + j), hn::Set(d, factor)), d, s + j);
    }
  }
}

#endif

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_DOT_SCORES_INL_
