// SPDX-License-Identifier: Apache-2.0
// Applies score rules between the product q kᵀ and the softmax; included once per Highway target.
#if defined(HEADGATE_ATTENTION_SCORES_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_SCORES_INL_
#undef HEADGATE_ATTENTION_SCORES_INL_
#else
#define HEADGATE_ATTENTION_SCORES_INL_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/key_lists.hpp"
#include "library/attention/problem.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Sets marks[j], for j < n, to 1 if key first + j is in the key list of query i, otherwise to 0.
template <typename T>
void mark_listed_keys(const Problem& p, const Sequence& sequence, std::int64_t h_kv, std::int64_t i, std::int64_t first,
                      std::int64_t n, T* HWY_RESTRICT marks) {
  std::fill_n(marks, n, T{0});
  visit_listed_blocks(p, sequence, h_kv, i, [&](std::int64_t block) {
    const std::int64_t begin = block * p.key_block_size - first;
    if (begin >= n || begin + p.key_block_size <= 0) return;
    std::fill(marks + std::max<std::int64_t>(begin, 0), marks + std::min(begin + p.key_block_size, n), T{1});
  });
}

/// Selects where a kernel applies score rules that consist only of biases and masks (bias, key bias, mask).
/// Scores do not depend on this choice: they are bitwise identical.
struct FusedRules {
  enum class Location : std::uint8_t {
    none,       ///< not applicable: there are no rules, or some are neither biases nor masks
    memory,     ///< the kernel applies the rules to scores in memory
    registers,  ///< the kernel applies the rules to scores in registers
  };
  /// Dtype of the bias, or of the key bias: none if there is neither; `own` is the type that the kernel computes in.
  enum class Addend : std::uint8_t { none, own, bf16 };
  enum class Second : std::uint8_t { none, key_bias, mask };

  Location location = Location::none;
  // The next two members are used only for Location::registers.
  Addend addend = Addend::none;  ///< dtype of the bias, or of the key bias if there is no bias
  Second second = Second::none;  ///< key bias or mask that is applied after the addend

  bool any() const { return location != Location::none; }
  bool in_memory() const { return location == Location::memory; }
  bool in_registers() const { return location == Location::registers; }
};

/// Bound on running maxima, above which a strip adds biases in registers. Otherwise ScoreRules adds them.
/// For large negative biases, the product with log2(e) overflows to −∞ in registers. ScoreRules clamps the product.
/// With maxima above the bound, the key's weight is 0 in both cases.
template <typename T>
inline constexpr T kLeastFusedMaximum = T{-1e30};

/// Turns products scale · q·k into scores s. Applies softcap, ALiBi, biases, boolean mask and key lists.
/// Causality, window and key lengths are left to Visibility, which limits the keys that a query visits.
///
/// Results are s · log2(e), ready for exp2. Without softcap and ALiBi, query_factor() includes the factor log2(e).
template <typename T>
class ScoreRules {
 public:
  explicit ScoreRules(const Problem& p) : p_(p), any_(p.softcap > 0 || by_position()) {}

  bool any() const { return any_; }
  /// Returns true if a score depends on the positions of its query and key.
  bool by_position() const {
    const AttentionInputs& in = p_.inputs;
    return in.alibi_slopes.present() || in.bias.present() || in.key_bias.present() || in.mask.present() ||
           in.key_indices.present();
  }
  bool capped() const { return p_.softcap > 0; }
  /// Returns how kernels may apply the rules. They may apply them in registers if three conditions hold:
  ///   Keys are adjacent in the memory of each bias and mask.
  ///   There is one rule, or an addend (bias or key bias) with one more rule.
  ///   There are no sinks, or the largest score is not requested (`finds_largest` is false).
  /// The third condition is needed because a row's running maximum may be its sink.
  /// In registers, a finite bias may then overflow to −∞, and the largest score would wrongly be −∞.
  FusedRules fused(bool finds_largest) const {
    using Location = FusedRules::Location;
    const AttentionInputs& in = p_.inputs;
    if (in_natural_units() || in.key_indices.present() || !any_) return {};
    FusedRules rules{Location::memory};
    const auto is_adjacent = [](const ConstTensorView& map) { return !map.present() || map.strides[3] == 1; };
    if (finds_largest && in.sinks.present()) return rules;
    if (!is_adjacent(in.bias) || !is_adjacent(in.key_bias) || !is_adjacent(in.mask)) return rules;
    const bool has_two_addends = in.bias.present() && in.key_bias.present();
    if (in.mask.present()) {
      if (has_two_addends || dtype_of<T>() != DType::f32) return rules;
      rules.second = FusedRules::Second::mask;
    } else if (has_two_addends) {
      if (in.key_bias.dtype != dtype_of<T>()) return rules;
      rules.second = FusedRules::Second::key_bias;
    }
    if (const ConstTensorView& map = addend(); map.present()) {
      if (map.dtype == dtype_of<T>()) {
        rules.addend = FusedRules::Addend::own;
      } else if (map.dtype == DType::bf16 && dtype_of<T>() == DType::f32) {
        rules.addend = FusedRules::Addend::bf16;
      } else {
        return rules;
      }
    }
    rules.location = Location::registers;
    return rules;
  }
  /// Returns the bias, or the key bias if there is no bias.
  const ConstTensorView& addend() const { return p_.inputs.bias.present() ? p_.inputs.bias : p_.inputs.key_bias; }
  /// Returns the factor by which queries are multiplied when they are packed.
  /// The factor is scale · log2(e), or `scale` if there is softcap or ALiBi.
  T query_factor() const { return static_cast<T>(in_natural_units() ? p_.scale : p_.scale * kLog2e); }

  /// Applies the rules to n scores of query i of query head h, from key `first` on.
  ///   s: query_factor() · q·k on entry, and scores times log2(e) on return.
  ///   slope: receives the softcap's derivative 1 − tanh² for each score, unless null.
  ///   buffer: scratch for 2 n elements.
  ///
  /// Adds bias and key bias first, each times log2(e), and then adds their sum to the score.
  /// With a bias of −10⁹ in f32, another order would change scores by up to 128.
  /// Kernels for small heads use the same order, so that forward and backward pass compute equal scores.
  void apply(T* HWY_RESTRICT s, T* HWY_RESTRICT slope, const Sequence& sequence, std::int64_t h, std::int64_t i,
             std::int64_t first, std::int64_t n, T* HWY_RESTRICT buffer) const {
    apply_in(KeyRun{first}, s, slope, sequence, h, i, n, buffer);
    if (!p_.inputs.key_indices.present()) return;
    mark_listed_keys(p_, sequence, h / p_.group, i, first, n, buffer);
    hide_unmarked(s, n, buffer);
  }

  /// Applies the rules, except key lists, to the scores of n listed keys. `keys` holds these keys in ascending order.
  void apply_listed(T* HWY_RESTRICT s, T* HWY_RESTRICT slope, const Sequence& sequence, std::int64_t h, std::int64_t i,
                    const std::int64_t* keys, std::int64_t n, T* HWY_RESTRICT buffer) const {
    apply_in(ListedColumns{keys}, s, slope, sequence, h, i, n, buffer);
  }

  /// Applies the rules to the scores of query i in columns [c0, c1), and sets the scores of hidden keys to −∞.
  /// Column 0 is key j0.
  void apply_and_hide(T* HWY_RESTRICT row, const Visibility& visibility, const Sequence& sequence, std::int64_t h,
                      std::int64_t i, std::int64_t j0, std::int64_t c0, std::int64_t c1, T* HWY_RESTRICT buffer) const {
    constexpr T kHidden = -std::numeric_limits<T>::infinity();
    const KeyRange seen = visibility.columns(i, j0, c0, c1);
    if (any() && !seen.empty()) {
      apply(row + seen.begin, nullptr, sequence, h, i, j0 + seen.begin, seen.end - seen.begin, buffer);
    }
    std::fill(row + c0, row + seen.begin, kHidden);
    std::fill(row + seen.end, row + c1, kHidden);
  }

 private:
  /// Columns of consecutive keys. Column 0 is key `first`.
  struct KeyRun {
    std::int64_t first;
    /// Returns the position `at` of a query minus the position of the key in column j.
    /// Converts j from 32 bits, because all targets have vector instructions for this conversion.
    T offset(std::int64_t at, std::int64_t j) const {
      return static_cast<T>(at - first) - static_cast<T>(static_cast<std::int32_t>(j));
    }
    const T* row(const HeadRows<const void>& map, std::int64_t i, std::int64_t n, T* HWY_RESTRICT own) const {
      return dense_row(map.columns(first, n), i, own);
    }
  };
  /// Columns of listed keys. Column j is key keys[j].
  struct ListedColumns {
    const std::int64_t* keys;
    T offset(std::int64_t at, std::int64_t j) const { return static_cast<T>(at - keys[j]); }
    const T* row(const HeadRows<const void>& map, std::int64_t i, std::int64_t n, T* HWY_RESTRICT own) const {
      gather_row(own, map, i, keys, n);
      return own;
    }
  };

  /// Implements apply() for the keys of `columns`.
  template <class Columns>
  void apply_in(const Columns& columns, T* HWY_RESTRICT s, T* HWY_RESTRICT slope, const Sequence& sequence,
                std::int64_t h, std::int64_t i, std::int64_t n, T* HWY_RESTRICT buffer) const {
    if (p_.softcap > 0) cap(s, slope, n);
    if (p_.inputs.alibi_slopes.present()) {
      const T weight = static_cast<T>(p_.alibi_slope(sequence.number, h));
      const std::int64_t at = sequence.first_position + i;
      for (std::int64_t j = 0; j < n; ++j) s[j] -= weight * std::abs(columns.offset(at, j));
    }
    const Tag<T> d;
    const auto hidden = hn::Set(d, -std::numeric_limits<T>::infinity());
    const auto scaled = [d](auto x) HWY_ATTR { return in_log2_units(d, x); };
    // A bias of −∞ replaces the score. Added to a product that overflowed to +∞, it would give NaN.
    const auto add = [hidden](auto score, auto term)
                         HWY_ATTR { return hn::IfThenElse(hn::Eq(term, hidden), hidden, hn::Add(score, term)); };
    const auto row_of = [&](const ConstTensorView& map, T* HWY_RESTRICT own) {
      return columns.row(map_rows(map, sequence, h), i, n, own);
    };
    const ConstTensorView &bias = p_.inputs.bias, &key_bias = p_.inputs.key_bias;
    if (in_natural_units()) update_row(s, n, scaled);
    if (bias.present() && key_bias.present()) {
      const auto both = [&](auto score, auto of_pair, auto of_key)
                            HWY_ATTR { return add(score, add_visible(d, scaled(of_pair), scaled(of_key))); };
      update_row(s, n, both, row_of(bias, buffer), row_of(key_bias, buffer + n));
    } else if (bias.present() || key_bias.present()) {
      const auto one = [&](auto score, auto term) HWY_ATTR { return add(score, scaled(term)); };
      update_row(s, n, one, row_of(bias.present() ? bias : key_bias, buffer));
    }
    if (p_.inputs.mask.present()) hide_unmarked(s, n, row_of(p_.inputs.mask, buffer));
  }

  /// Sets scores with mark 0 to −∞, which hides their keys.
  static void hide_unmarked(T* HWY_RESTRICT s, std::int64_t n, const T* HWY_RESTRICT marks) {
    const Tag<T> d;
    update_row(
        s, n, [d](auto score, auto mark) HWY_ATTR { return hide_masked(d, score, mark); }, marks);
  }

  /// Returns true if there is softcap or ALiBi. They apply before scores are multiplied by log2(e).
  bool in_natural_units() const { return p_.softcap > 0 || p_.inputs.alibi_slopes.present(); }

  void cap(T* HWY_RESTRICT s, T* HWY_RESTRICT slope, std::int64_t n) const {
    const Tag<T> d;
    const auto c = hn::Set(d, static_cast<T>(p_.softcap));
    const auto inverse = hn::Set(d, static_cast<T>(1.0 / p_.softcap));
    const auto one = hn::Set(d, T{1});
    HWY_ALIGN T lane[kLanes<T>] = {};
    for (std::int64_t j = 0; j < n; j += kLanes<T>) {
      const std::int64_t count = std::min(kLanes<T>, n - j);
      T* at = s + j;
      if (count < kLanes<T>) {
        std::copy(at, at + count, lane);
        at = lane;
      }
      const auto t = hn::Tanh(d, hn::Mul(hn::LoadU(d, at), inverse));
      hn::StoreU(hn::Mul(c, t), d, at);
      if (count < kLanes<T>) std::copy(lane, lane + count, s + j);
      if (slope == nullptr) continue;
      // The slope is 0 if the tanh t is NaN. If the key is visible, its ds is NaN nevertheless, because P is NaN.
      hn::StoreU(hn::IfThenElseZero(hn::Eq(t, t), hn::NegMulAdd(t, t, one)), d, lane);
      std::copy(lane, lane + count, slope + j);
    }
  }

  const Problem& p_;
  bool any_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SCORES_INL_
