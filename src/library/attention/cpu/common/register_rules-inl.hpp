// SPDX-License-Identifier: Apache-2.0
// Applies biases and masks to scores in registers (FusedRules::Location::registers); included once per Highway target.
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

/// Stands for an absent score rule.
struct NoRule {};

/// Locates elements of a bias or mask for several queries and the keys of one key block.
/// rows[m] is the address of query m's element for the first key of the block. Elements are read from column c on.
struct RuleRows {
  const void* const* rows;
  std::int64_t c;

  template <typename Stored>
  const Stored* at(std::int64_t m) const {
    return static_cast<const Stored*>(rows[m]) + c;
  }
  /// Prefetches the elements that the caller reads after its products: kColumns elements of each of kRows rows.
  /// Also prefetches elements of a later panel of keys.
  /// Hardware prefetchers miss these elements, because reads alternate between many rows in different pages.
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

/// Loads elements of a bias (one row per query) or of a key bias (one row for all queries).
template <typename T, typename Stored>
struct BiasRows : RuleRows {
  HWY_INLINE hn::Vec<Tag<T>> load(std::int64_t m, std::int64_t x) const { return load_as<T>(at<Stored>(m) + x); }
  template <std::int64_t kRows, std::int64_t kColumns>
  HWY_INLINE void prefetch() const {
    RuleRows::prefetch<Stored, kRows, kColumns>();
  }
};

/// Loads elements of the key bias in a problem that also has a bias.
template <typename T>
struct KeyBiasRow {
  const T* row;

  HWY_INLINE hn::Vec<Tag<T>> load(std::int64_t x) const { return hn::LoadU(Tag<T>(), row + x); }
};

/// Sets f32 scores to −∞ where the mask is 0.
struct MaskRows : RuleRows {
  HWY_INLINE hn::Vec<Tag<float>> hide_masked_scores(hn::Vec<Tag<float>> score, std::int64_t m, std::int64_t x) const {
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

/// Selects whether RegisterRules handles overflow when it adds biases:
///   unhandled: A score of +∞ plus a bias of −∞ is NaN. Two finite biases may add up to ±∞.
///     The kernel must check for NaN.
///   handled: A bias of −∞ makes every score −∞. The sum of two finite biases is clamped, as in ScoreRules.
/// In both cases, log2(e) times a finite bias may overflow to ±∞. ScoreRules prevents this by clamping.
/// If running maxima are moderate, the key's weight is 0, ∞ or NaN with or without this clamping.
enum class Overflow { unhandled, handled };

/// Applies biases and masks to scores in registers. Template arguments select the rules:
///   Addend: BiasRows, or NoRule without a bias.
///   Second: KeyBiasRow, MaskRows or NoRule.
/// Adds terms in the order of ScoreRules, so that scores are bitwise identical unless they overflow (Overflow).
template <typename T, class Addend, class Second, Overflow kOverflow>
struct RegisterRules {
  Addend addend;
  Second second;

  /// Applies the rules to one vector of scores, of query m and the keys from column c + x of the block on.
  HWY_INLINE hn::Vec<Tag<T>> apply(hn::Vec<Tag<T>> score, std::int64_t m, std::int64_t x) const {
    if constexpr (!std::is_same_v<Addend, NoRule>) score = add(score, m, x);
    if constexpr (std::is_same_v<Second, MaskRows>) score = second.hide_masked_scores(score, m, x);
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
    if constexpr (kOverflow == Overflow::unhandled) {
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

/// Addresses of the bias and mask elements that RegisterRules reads. Each belongs to a query and the first key of a
/// block.
template <typename T, std::int64_t kRows>
struct RuleAddresses {
  const void* addend_rows[kRows];  ///< for each query: element of the bias or key bias (ScoreRules::addend())
  const void* mask_rows[kRows];    ///< for each query: element of the mask
  const T* key_bias;               ///< beside a bias, the element of the key bias for the block's first key

  /// Sets the addresses for key j0 and `rows` queries of head h. Row m belongs to query query_of(m).
  /// Rows after the last one get the addresses of the last row.
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

  /// Calls visit(rules) with the RegisterRules that `fused` selects.
  /// They apply to the keys from column c of the block on.
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
