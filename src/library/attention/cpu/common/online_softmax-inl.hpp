// SPDX-License-Identifier: Apache-2.0
// Computes the softmax in one pass over the keys; included once per Highway target.
#if defined(HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_
#undef HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_
#else
#define HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "library/core/vec-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Online softmax of a tile's rows: running maxima in units of log2(e), sums of exponentials by lane, and outputs not
/// yet divided by the sums.
///
/// Maxima are updated lazily: a maximum stays until a score exceeds it by more than kSlack powers of two. The common
/// case thus needs no separate pass for the maximum. exp2(kSlack) times the number of keys stays far from overflow.
template <typename T>
class OnlineSoftmax {
 public:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();
  static constexpr int kSlack = 16;

  /// Shapes: maxima (rows), sums (rows, lanes), out (rows, whole vectors).
  OnlineSoftmax(const View<T, 1>& maxima, const View<T, 2>& sums, const View<T, 2>& out)
      : maxima_(maxima), sums_(sums), out_(out) {}

  /// Initialises `rows` rows. A sink's logit is the initial maximum, and its term 1 the initial sum. kHidden means no
  /// sink.
  void start(std::int64_t rows, T sink) const {
    std::fill_n(maxima_.data, rows, sink);
    std::fill_n(sums_.data, rows * kLanes<T>, T{0});
    for (std::int64_t r = 0; sink != kHidden && r < rows; ++r) sums_(r, 0) = T{1};
    std::fill_n(out_.data, rows * out_.shape[1], T{0});
  }

  T maximum(std::int64_t r) const { return maxima_(r); }
  T lowest_maximum(std::int64_t r, std::int64_t rows) const {
    const T* maxima = maxima_.at(r);
    return *std::min_element(maxima, maxima + rows);
  }
  /// Returns the value to subtract from the scores of row r: the running maximum. In a row that has seen no key the
  /// value is 0, since −∞ − (−∞) is NaN.
  T shift(std::int64_t r) const { return maxima_(r) == kHidden ? T{0} : maxima_(r); }

  /// Raises the maxima of rows r … r + rows to the maximum of n scores per row, and rescales sums and outputs. Scores
  /// have row stride lds; n is a multiple of two vectors.
  void raise_maxima(std::int64_t r, std::int64_t rows, const T* scores, std::int64_t lds, std::int64_t n) const {
    for (std::int64_t m = 0; m < rows; ++m) raise_maximum(r + m, scores + m * lds, n);
  }

  /// Adds the sums of a block, (rows, lanes), to the running sums of rows r … r + rows.
  void add_sums(std::int64_t r, std::int64_t rows, const T* HWY_RESTRICT block_sums) const {
    const Tag<T> d;
    T* HWY_RESTRICT sums = sums_.at(r);
    for (std::int64_t x = 0; x < rows * kLanes<T>; x += kLanes<T>) {
      hn::Store(hn::Add(hn::Load(d, sums + x), hn::Load(d, block_sums + x)), d, sums + x);
    }
  }
  T sum(std::int64_t r) const {
    const Tag<T> d;
    return hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums_.at(r))));
  }

  /// Returns true only if no exponent of a block exceeds kSlack, judged by the block's sums (rows, lanes). NaN may go
  /// undetected.
  static bool within_slack(const T* block_sums, std::int64_t rows) {
    const Tag<T> d;
    auto sum = hn::Zero(d);
    for (std::int64_t m = 0; m < rows; ++m) sum = hn::Max(hn::Load(d, block_sums + m * kLanes<T>), sum);
    return hn::GetLane(hn::MaxOfLanes(d, sum)) <= T{1 << kSlack};
  }

 private:
  HWY_INLINE void raise_maximum(std::int64_t r, const T* HWY_RESTRICT scores, std::int64_t n) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    const T before = maxima_(r);
    auto max0 = hn::Set(d, before);
    auto max1 = max0;
    for (std::int64_t j = 0; j < n; j += 2 * kN) {
      max0 = hn::Max(max0, hn::Load(d, scores + j));
      max1 = hn::Max(max1, hn::Load(d, scores + j + kN));
    }
    const T after = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
    if (after == before) return;
    const auto decay = exp2_fast(d, hn::Sub(hn::Set(d, before), hn::Set(d, after)));
    maxima_(r) = after;
    hn::Store(hn::Mul(decay, hn::Load(d, sums_.at(r))), d, sums_.at(r));
    T* HWY_RESTRICT out = out_.at(r);
    for (std::int64_t x = 0; x < out_.shape[1]; x += kN) hn::Store(hn::Mul(decay, hn::Load(d, out + x)), d, out + x);
  }

  View<T, 1> maxima_;
  View<T, 2> sums_, out_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_ONLINE_SOFTMAX_INL_
