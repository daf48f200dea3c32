// SPDX-License-Identifier: Apache-2.0
// Applies biases and masks to scores in registers (FusedRules::Place::registers); included once per Highway target.
#if defined(HEADGATE_ATTENTION_REGISTER_RULES_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_REGISTER_RULES_INL_
#undef HEADGATE_ATTENTION_REGISTER_RULES_INL_
#else
#define HEADGATE_ATTENTION_REGISTER_RULES_INL_
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Stands for the absence of a score rule.
struct NoRule {};

/// Locates the elements of a bias or mask for some queries, from column `c` of a key block on.
/// rows[m] is the address of query m's element for the first key of the block.
struct RuleRows {
  const void* const* rows;
  std::int64_t c;

  template <typename Stored>
  const Stored* at(std::int64_t m) const {
    return static_cast<const Stored*>(rows[m]) + c;
  }
  /// Prefetches kColumns elements of kRows rows, which the caller reads after the products, and those of a later panel.
  /// The CPU does not prefetch them by itself, because reads alternate between many rows that lie in different pages.
  template <typename Stored, std::int64_t kRows, std::int64_t kColumns>
  HWY_INLINE void prefetch() const {
    constexpr std::int64_t kLine = 64 / sizeof(Stored), kAhead = 2 * kColumns;
    for (std::int64_t m = 0; m < kRows; ++m) {
      for (std::int64_t x = 0; x < kColumns; x += kLine) {
        __builtin_prefetch(at<Stored>(m) + x, 0, 3);
        __builtin_prefetch(at<Stored>(m) + kAhead + x, 0, 2);
      }
    }
  }
};

/// Loads elements of a bias. Each query has its own row, or all share the row of a key bias.
template <typename T, typename Stored>
struct BiasRows : RuleRows {
  HWY_INLINE hn::Vec<Tag<T>> load(std::int64_t m, std::int64_t x) const { return load_as<T>(at<Stored>(m) + x); }
  template <std::int64_t kRows, std::int64_t kColumns>
  HWY_INLINE void prefetch() const {
    RuleRows::prefetch<Stored, kRows, kColumns>();
  }
};

/// Loads elements of the key bias of a problem that has a bias too.
template <typename T>
struct KeyBiasRow {
  const T* row;

  HWY_INLINE hn::Vec<Tag<T>> load(std::int64_t x) const { return hn::LoadU(Tag<T>(), row + x); }
};

/// Hides f32 scores whose element of the mask is 0.
struct MaskRows : RuleRows {
  HWY_INLINE hn::Vec<Tag<float>> hide(hn::Vec<Tag<float>> score, std::int64_t m, std::int64_t x) const {
    const Tag<float> d;
    const hn::RebindToUnsigned<Tag<float>> wide;
    const hn::Rebind<std::uint8_t, Tag<float>> bytes;
    const auto is_hidden = hn::Eq(hn::PromoteTo(wide, hn::LoadU(bytes, at<std::uint8_t>(m) + x)), hn::Zero(wide));
    return hn::IfThenElse(hn::RebindMask(d, is_hidden), hn::Set(d, -std::numeric_limits<float>::infinity()), score);
  }
  template <std::int64_t kRows, std::int64_t kColumns>
  HWY_INLINE void prefetch() const {
    RuleRows::prefetch<std::uint8_t, kRows, kColumns>();
  }
};

/// Selects what RegisterRules does where numbers overflow:
///   becomes_nan   a bias of −∞ makes a score of +∞ NaN, and finite biases may add up to ±∞. The kernel detects NaN;
///   stays_hidden  a bias of −∞ makes every score −∞, and a sum of two finite biases is clamped, as in ScoreRules.
/// In both, a finite bias without a second one may become ±∞ when it is multiplied by log2(e), while ScoreRules clamps
/// it. Where running maxima are moderate, the key's weight is then 0, ∞ or NaN either way.
enum class Overflow { becomes_nan, stays_hidden };

/// Applies score rules in registers. Addend is BiasRows or NoRule. Second is KeyBiasRow, MaskRows or NoRule.
/// Adds terms in the order of ScoreRules, so that scores have the same bits unless they overflow (Overflow).
template <typename T, class Addend, class Second, Overflow kOverflow>
struct RegisterRules {
  Addend addend;
  Second second;

  /// Applies the rules to the scores of query m and of the keys in columns c + x … of the block.
  HWY_INLINE hn::Vec<Tag<T>> apply(hn::Vec<Tag<T>> score, std::int64_t m, std::int64_t x) const {
    if constexpr (!std::is_same_v<Addend, NoRule>) score = add(score, m, x);
    if constexpr (std::is_same_v<Second, MaskRows>) score = second.hide(score, m, x);
    return score;
  }
  template <std::int64_t kRows, std::int64_t kColumns>
  HWY_INLINE void prefetch() const {
    if constexpr (!std::is_same_v<Addend, NoRule>) addend.template prefetch<kRows, kColumns>();
    if constexpr (std::is_same_v<Second, MaskRows>) second.template prefetch<kRows, kColumns>();
  }

 private:
  HWY_INLINE hn::Vec<Tag<T>> add(hn::Vec<Tag<T>> score, std::int64_t m, std::int64_t x) const {
    constexpr bool kHasKeyBias = std::is_same_v<Second, KeyBiasRow<T>>;
    const Tag<T> d;
    const auto log2e = hn::Set(d, static_cast<T>(kLog2e));
    const auto bias = addend.load(m, x);
    if constexpr (kOverflow == Overflow::becomes_nan) {
      auto term = hn::Mul(bias, log2e);
      if constexpr (kHasKeyBias) term = hn::Add(term, hn::Mul(second.load(x), log2e));
      return hn::Add(score, term);
    } else {
      const auto hidden = hn::Set(d, -std::numeric_limits<T>::infinity());
      if constexpr (kHasKeyBias) {
        const auto term = add_visible(d, in_log2_units(d, bias), in_log2_units(d, second.load(x)));
        return hn::IfThenElse(hn::Eq(term, hidden), hidden, hn::Add(score, term));
      } else {
        return hn::IfThenElse(hn::Eq(bias, hidden), hidden, hn::Add(score, hn::Mul(bias, log2e)));
      }
    }
  }
};

/// Addresses of bias and mask elements that RegisterRules reads: one per query, for the first key of a block.
template <typename T, std::int64_t kRows>
struct RuleAddresses {
  const void* addend_rows[kRows];  ///< for each row, in the bias or key bias that ScoreRules::addend() returns
  const void* mask_rows[kRows];    ///< for each row, in the mask
  const T* key_bias;               ///< in a key bias besides a bias

  /// Sets the addresses for `rows` queries of head h and for key j0. Row m is query query_of(m). Rows from `rows` on
  /// get the addresses of the last one.
  template <class QueryOf>
  void find(const FusedRules& fused, const ScoreRules<T>& rules, const AttentionInputs& in, const Sequence& sequence,
            std::int64_t h, std::int64_t rows, std::int64_t j0, const QueryOf& query_of) {
    const auto find_rows = [&](const void** to, const ConstTensorView& map) {
      const HeadRows<const void> from = map_rows(map, sequence, h);
      const auto bytes = static_cast<std::int64_t>(dtype_bytes(from.dtype));
      for (std::int64_t m = 0; m < kRows; ++m) {
        const std::int64_t i = query_of(m < rows ? m : rows - 1);
        to[m] = static_cast<const char*>(from.data) + (from.start + i * from.row_stride + j0) * bytes;
      }
    };
    if (fused.addend != FusedRules::Addend::none) find_rows(addend_rows, rules.addend());
    if (fused.second == FusedRules::Second::mask) find_rows(mask_rows, in.mask);
    if (fused.second != FusedRules::Second::key_bias) return;
    const HeadRows<const void> row = map_rows(in.key_bias, sequence, h);
    key_bias = static_cast<const T*>(row.data) + row.start + j0;
  }

  /// Calls visit() with the RegisterRules that `fused` describes, for the columns from c on.
  template <Overflow kOverflow, class Visit>
  HWY_INLINE void visit(const FusedRules& fused, std::int64_t c, const Visit& visit) const {
    constexpr bool kIsFloat = std::is_same_v<T, float>;
    switch (fused.addend) {
      case FusedRules::Addend::own: visit_beside<kOverflow>(fused, c, BiasRows<T, T>{{addend_rows, c}}, visit); break;
      case FusedRules::Addend::bf16:
        if constexpr (kIsFloat) visit_beside<kOverflow>(fused, c, BiasRows<T, BFloat16>{{addend_rows, c}}, visit);
        break;
      case FusedRules::Addend::none:
        if constexpr (kIsFloat) visit(RegisterRules<T, NoRule, MaskRows, kOverflow>{{}, {{mask_rows, c}}});
    }
  }

 private:
  template <Overflow kOverflow, class Addend, class Visit>
  HWY_INLINE void visit_beside(const FusedRules& fused, std::int64_t c, const Addend& addend,
                               const Visit& visit) const {
    switch (fused.second) {
      case FusedRules::Second::none: return visit(RegisterRules<T, Addend, NoRule, kOverflow>{addend, {}});
      case FusedRules::Second::key_bias:
        return visit(RegisterRules<T, Addend, KeyBiasRow<T>, kOverflow>{addend, {key_bias + c}});
      case FusedRules::Second::mask:
        if constexpr (std::is_same_v<T, float>)
          visit(RegisterRules<T, Addend, MaskRows, kOverflow>{addend, {{mask_rows, c}}});
    }
  }
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_REGISTER_RULES_INL_
