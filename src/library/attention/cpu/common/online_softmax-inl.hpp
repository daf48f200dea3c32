// SPDX-License-Identifier: Apache-2.0
// Computes the softmax in one pass over the keys; included once per Highway target.
//
// A strip passes through these states in each key block. Exponentials are exp2(score + negated_maxima[row]).
//
//   state        near_maxima  negated_maxima  what happens
//   new row      false        unset           begin() takes the maximum of the first panel that the row sees
//   near         true         set             the kernel computes exponentials by panel, from column `done` on
//   exceeded     true         set             an exponent exceeds kSlack: finish() goes on as in "whole block"
//   whole block  false        unset           finish() computes all scores, raises the maxima, computes exponentials
//
// A block begins as "whole block" if a kernel asks for it, because of its score rules, or if a row sees no key of its
// first panel.
#if defined(HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_
#undef HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_
#else
#define HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "library/attention/cpu/common/strip-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/vec-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Strip of up to kRows query rows, with the state of their softmax in the current key block.
template <typename T, std::int64_t kRows>
struct SoftmaxStrip : Strip<T> {
  bool near_maxima = false;  ///< true while exponentials use the unchanged running maxima, which is the common case
  std::int64_t done = 0;     ///< columns before `done` hold exponentials, later columns hold scores
  /// negated running maxima. 0 for rows that have seen no key. −∞ for padding rows, which makes their exponentials 0
  T negated_maxima[kRows];
  HWY_ALIGN T max_exponents[kLanes<T>];  ///< per lane: largest exponent (score − maximum) of all rows in the block
  /// for each row and lane: largest exponent in the block; used if max_logit is requested
  HWY_ALIGN T row_max_exponents[kRows * kLanes<T>];
  HWY_ALIGN T sums[kRows * kLanes<T>];  ///< sums of each row's exponentials in the block, one per lane
};

/// Tracks the largest exponent, to detect exponents that are too large for exp2_fast.
/// Where exp2_fast saturates, this class does nothing: too large an exponent makes the sum of exponentials ∞.
/// Elsewhere exp2_fast could wrap around, so this class is necessary.
template <typename T>
class LargestExponent {
 public:
  /// Loads the largest exponents from `max_exponents`, one per lane. store() writes the updated exponents back.
  explicit LargestExponent(T* HWY_RESTRICT max_exponents) : max_exponents_(max_exponents) {
    if constexpr (!kExp2Saturates<T>) max0_ = max1_ = hn::Load(Tag<T>(), max_exponents);
  }
  HWY_INLINE void update(hn::Vec<Tag<T>> x0, hn::Vec<Tag<T>> x1) {
    if constexpr (!kExp2Saturates<T>) {
      max0_ = hn::Max(x0, max0_);  // MAXPS returns its second operand, max0_, if x0 is NaN
      max1_ = hn::Max(x1, max1_);
    }
  }
  HWY_INLINE void store() const {
    if constexpr (!kExp2Saturates<T>) hn::Store(hn::Max(max0_, max1_), Tag<T>(), max_exponents_);
  }

 private:
  T* max_exponents_;
  hn::Vec<Tag<T>> max0_, max1_;
};

/// Online softmax of the rows of a query tile. For each row, keeps
///   the running maximum times log2(e);
///   the sum of exponentials, one sum per lane;
///   the output before it is divided by the sum.
///
/// Raises a running maximum only if a score exceeds it by more than kSlack, in units of log2.
/// The common case therefore needs no separate pass for the maximum.
/// Sums cannot overflow: exp2(kSlack) times the number of keys is far below the largest number.
template <typename T>
class OnlineSoftmax {
 public:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();
  static constexpr int kSlack = 16;

  /// Shapes: maxima (rows), sums (rows, lanes), out (rows, whole vectors), largest (rows) or absent.
  /// `largest` receives each row's largest score. `maxima` holds the running maxima, which can differ from the largest
  /// scores: they include the sink, and scores may exceed them by up to kSlack.
  OnlineSoftmax(const View<T, 1>& maxima, const View<T, 2>& sums, const View<T, 2>& out, const View<T, 1>& largest)
      : maxima_(maxima), sums_(sums), out_(out), largest_(largest) {}

  /// Initialises `rows` rows of head h. Row r is query(r) for r < count. Later rows are padding.
  /// With a sink, the maximum starts at the sink's logit and the sum at 1.
  template <class Query>
  HWY_NOINLINE void start(std::int64_t rows, std::int64_t count, const Problem& p, const Sequence& s, std::int64_t h,
                          const Query& query) const {
    const auto sink_of = [&](std::int64_t r) { return in_log2_units<T>(p.sink(s, h, query(r))); };
    const T sink = p.inputs.sinks.present() ? sink_of(0) : kHidden;
    std::fill_n(maxima_.data, rows, sink);
    for (std::int64_t r = 1; p.sinks_by_query && r < count; ++r) maxima_(r) = sink_of(r);
    if (keeps_largest()) std::fill_n(largest_.data, rows, kHidden);
    std::fill_n(sums_.data, rows * kLanes<T>, T{0});
    for (std::int64_t r = 0; p.inputs.sinks.present() && r < rows; ++r)
      sums_(r, 0) = maxima_(r) == kHidden ? T{0} : T{1};
    std::fill_n(out_.data, rows * out_.shape[1], T{0});
  }

  bool keeps_largest() const { return largest_.present(); }
  T maximum(std::int64_t r) const { return maxima_(r); }
  /// Returns the largest score of row r. Returns −∞ if largest scores are not tracked.
  T largest(std::int64_t r) const { return keeps_largest() ? largest_(r) : kHidden; }
  T sum(std::int64_t r) const {
    const Tag<T> d;
    return hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums_.at(r))));
  }
  /// Returns the value to subtract from the scores of row r. This is the row's running maximum.
  /// If the row has seen no key, its maximum is −∞ and the value is 0, because −∞ − (−∞) is NaN.
  T shift(std::int64_t r) const { return maxima_(r) == kHidden ? T{0} : maxima_(r); }

  // In the functions below, Kernel provides the members that visit_blocks requires, and:
  //   kKeepsFirstPanel     true if begin() may compute the first panel's exponentials from its scores;
  //   score(s, c0, c1)     computes columns [c0, c1) of the scores times log2(e), with −∞ for hidden keys;
  //   weigh(s, c0, c1)     computes the exponentials of these columns, and adds them to s.sums.
  // If keeps_largest(), largest scores are found in one of two ways:
  //   near_maxima is true    the kernel updates s.row_max_exponents with the exponents that it computes;
  //   near_maxima is false   raise_maxima() finds the largest scores in memory.

  /// Clears the sums and the largest exponents of a block.
  template <std::int64_t kRows>
  void clear(SoftmaxStrip<T, kRows>& s) const {
    std::fill_n(s.max_exponents, kLanes<T>, kHidden);
    std::fill_n(s.sums, kRows * kLanes<T>, T{0});
    if (keeps_largest()) std::fill_n(s.row_max_exponents, kRows * kLanes<T>, kHidden);
  }

  /// Begins a key block. If `lazy`, rows keep their running maxima until a score exceeds one by more than kSlack.
  /// A row that has seen no key takes its maximum from the block's first panel.
  template <std::int64_t kRows, class Kernel>
  void begin(SoftmaxStrip<T, kRows>& s, const Kernel& kernel, bool lazy) const {
    clear(s);
    s.near_maxima = lazy;
    s.done = s.at.c0;
    if (!lazy) return;
    const bool has_new_row = lowest_maximum(s) == kHidden;
    const std::int64_t first_end = s.at.c0 + Kernel::Plan::kPanel;
    if (has_new_row) {
      kernel.score(s, s.at.c0, first_end);
      raise_maxima(s, s.at.c0, first_end, Kernel::Plan::kScoreStride);
      s.near_maxima = lowest_maximum(s) != kHidden;
      if (!s.near_maxima) return;
    }
    negate_maxima(s);
    if (!has_new_row || !Kernel::kKeepsFirstPanel) return;
    kernel.weigh(s, s.at.c0, first_end);
    s.done = first_end;
  }

  /// Adds the block's exponentials to the rows' sums.
  /// If a score exceeds its row's running maximum by more than kSlack, first computes the block's scores again and
  /// raises the maxima.
  /// Returns true if it raised a maximum by more than kSlack. Raising it from −∞ does not count.
  template <std::int64_t kRows, class Kernel>
  bool finish(SoftmaxStrip<T, kRows>& s, const Kernel& kernel) const {
    bool rose = false;
    if (!s.near_maxima || !within_slack(s)) {
      kernel.score(s, s.at.c0, s.at.c1);
      rose = raise_maxima(s, s.at.c0, s.at.c1, Kernel::Plan::kScoreStride);
      negate_maxima(s);
      std::fill_n(s.sums, kRows * kLanes<T>, T{0});
      kernel.weigh(s, s.at.c0, s.at.c1);
    } else if (keeps_largest()) {
      raise_largest(s);
    }
    const Tag<T> d;
    T* HWY_RESTRICT sums = sums_.at(s.r);
    for (std::int64_t x = 0; x < s.rows * kLanes<T>; x += kLanes<T>) {
      hn::Store(hn::Add(hn::Load(d, sums + x), hn::Load(d, s.sums + x)), d, sums + x);
    }
    return rose;
  }

  /// Returns false if an exponent of the columns computed so far exceeds kSlack. finish() then computes all scores
  /// again.
  /// Always returns true where exp2_fast saturates, because exponents are not tracked there.
  template <std::int64_t kRows>
  static bool may_be_within_slack(const SoftmaxStrip<T, kRows>& s) {
    const Tag<T> d;
    return kExp2Saturates<T> || hn::AllFalse(d, hn::Gt(hn::Load(d, s.max_exponents), hn::Set(d, T{kSlack})));
  }

  /// Returns the lowest running maximum of the strip's rows.
  T lowest_maximum(const Strip<T>& s) const {
    const T* maxima = maxima_.at(s.r);
    return *std::min_element(maxima, maxima + s.rows);
  }

 private:
  template <std::int64_t kRows>
  void negate_maxima(SoftmaxStrip<T, kRows>& s) const {
    for (std::int64_t m = 0; m < kRows; ++m) s.negated_maxima[m] = m < s.rows ? -shift(s.r + m) : kHidden;
  }

  /// Raises largest_ of each row to the row's largest score in the block: running maximum + largest exponent.
  template <std::int64_t kRows>
  void raise_largest(const SoftmaxStrip<T, kRows>& s) const {
    const Tag<T> d;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      const T exponent = hn::GetLane(hn::MaxOfLanes(d, hn::Load(d, s.row_max_exponents + m * kLanes<T>)));
      largest_(s.r + m) = std::max(largest_(s.r + m), maxima_(s.r + m) + exponent);
    }
  }

  /// Returns whether every exponent of the strip's rows in the current key block is at most kSlack. May ignore NaN.
  /// Where exp2_fast saturates, compares the sums of exponentials with 2^kSlack instead.
  /// The result may then be false although every exponent is slightly below kSlack.
  template <std::int64_t kRows>
  static bool within_slack(const SoftmaxStrip<T, kRows>& s) {
    const Tag<T> d;
    if constexpr (!kExp2Saturates<T>) return hn::GetLane(hn::MaxOfLanes(d, hn::Load(d, s.max_exponents))) <= kSlack;
    auto sum = hn::Zero(d);
    for (std::int64_t m = 0; m < s.rows; ++m) sum = hn::Max(hn::Load(d, s.sums + m * kLanes<T>), sum);
    return hn::GetLane(hn::MaxOfLanes(d, sum)) <= T{1 << kSlack};
  }

  /// Raises the running maxima of the strip's rows to the largest scores in columns [c0, c1). Rescales sums and
  /// outputs.
  /// The number of columns is a multiple of two vectors.
  /// Returns true if it raised a maximum by more than kSlack. Raising it from −∞ does not count.
  bool raise_maxima(const Strip<T>& s, std::int64_t c0, std::int64_t c1, std::int64_t score_stride) const {
    bool rose = false;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      const T before = maxima_(s.r + m);
      raise_maximum(s.r + m, s.scores + m * score_stride + c0, c1 - c0);
      rose = rose || (before != kHidden && maxima_(s.r + m) - before > kSlack);
    }
    return rose;
  }

  HWY_INLINE void raise_maximum(std::int64_t r, const T* HWY_RESTRICT scores, std::int64_t n) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    auto max0 = hn::Set(d, kHidden);
    auto max1 = max0;
    for (std::int64_t j = 0; j < n; j += 2 * kN) {
      max0 = hn::Max(max0, hn::Load(d, scores + j));
      max1 = hn::Max(max1, hn::Load(d, scores + j + kN));
    }
    const T found = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
    if (keeps_largest()) largest_(r) = std::max(largest_(r), found);
    const T before = maxima_(r), after = std::max(before, found);
    if (after == before) return;
    const auto decay = exp2_fast(d, hn::Sub(hn::Set(d, before), hn::Set(d, after)));
    maxima_(r) = after;
    hn::Store(hn::Mul(decay, hn::Load(d, sums_.at(r))), d, sums_.at(r));
    T* HWY_RESTRICT out = out_.at(r);
    for (std::int64_t x = 0; x < out_.shape[1]; x += kN) hn::Store(hn::Mul(decay, hn::Load(d, out + x)), d, out + x);
  }

  View<T, 1> maxima_;
  View<T, 2> sums_, out_;
  View<T, 1> largest_;  // largest score of each row, times log2(e); absent unless max_logit is requested
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_
