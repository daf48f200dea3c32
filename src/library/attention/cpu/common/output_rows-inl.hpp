// SPDX-License-Identifier: Apache-2.0
// Writes the outputs of query rows in the forward pass; included once per Highway target.
#if defined(HEADGATE_ATTENTION_OUTPUT_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_OUTPUT_ROWS_INL_
#undef HEADGATE_ATTENTION_OUTPUT_ROWS_INL_
#else
#define HEADGATE_ATTENTION_OUTPUT_ROWS_INL_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "library/attention/cpu/common/gate_rows-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Writes the outputs of query head h of a sequence.
template <typename T>
class OutputRows {
 public:
  /// `gate` and `gated` are scratch rows of Dv elements, rounded up to vectors.
  OutputRows(const ForwardProblem& problem, const Sequence& sequence, std::int64_t h, const View<T, 1>& gate,
             const View<T, 1>& gated)
      : p_(problem),
        y_(query_rows(p_.outputs.y, sequence, h)),
        attn_(query_rows(p_.outputs.attn, sequence, h)),
        lse_(query_rows(p_.outputs.lse, sequence, h)),
        weights_(query_rows(p_.outputs.weights, sequence, h)),
        max_logit_(query_rows(p_.outputs.max_logit, sequence, h)),
        logits_(query_rows(p_.inputs.gate, sequence, h)),
        gate_(gate),
        gated_(gated),
        dense_as_(attn_.present() ? DType::none : dense_dtype()) {}

  /// Normalises query i, applies the gate and writes the outputs.
  ///   o: Σ exp2(s − max) v, Dv elements rounded up to vectors. write() divides it by `sum` in place.
  ///   sum: Σ exp2(s − max), including the sink.
  ///   max: the running maximum times log2(e).
  ///   largest: the largest score times log2(e). Read only if max_logit is requested.
  void write(std::int64_t i, T* HWY_RESTRICT o, T max, T sum, T largest) const {
    write_row(i, o, sum == T{0} ? T{0} : T{1} / sum);
    if (has_max_logit()) write_max_logits(&i, 1, &largest, &sum);
    if (!lse_.present()) return;
    const double lse = (static_cast<double>(max) + std::log2(static_cast<double>(sum))) * kLn2;
    store_row(lse_, &lse, i, 0, 1);
  }

  /// Writes all outputs of n queries except lse and max_logit. `rows` lists the queries in ascending order.
  /// `inverses` holds 1 / sum for each query, or 0 if the sum is 0.
  void write_tile(const std::int64_t* rows, std::int64_t n, const View<T, 2>& o, const T* inverses) const {
    if (dense_as_ != DType::none && consecutive(rows, n)) {
      if constexpr (std::is_same_v<T, float>) {
        if (dense_as_ == DType::bf16) return write_dense<BFloat16>(rows[0], n, o, inverses);
      }
      return write_dense<T>(rows[0], n, o, inverses);
    }
    for (std::int64_t r = 0; r < n; ++r) write_row(rows[r], o.at(r), inverses[r]);
  }

  /// Writes lse = (max + log2(sum)) · ln 2 for n queries. `rows` lists the queries in ascending order.
  void write_lse(const std::int64_t* rows, std::int64_t n, const T* maxima, const T* sums) const {
    if (!lse_.present()) return;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr std::int64_t kMost = 8;
    const Tag<double> d;
    HWY_ALIGN double buffer[kMost] = {};
    HWY_ALIGN double lse[kMost];
    for (std::int64_t r0 = 0; r0 < n; r0 += kMost) {
      const std::int64_t count = std::min(kMost, n - r0);
      for (std::int64_t r = 0; r < count; ++r) buffer[r] = static_cast<double>(sums[r0 + r]);
      for (std::int64_t r = 0; r < kMost; r += kLanes<double>) {
        const auto sum = hn::Load(d, buffer + r);
        const auto log = hn::IfThenElse(hn::Eq(sum, hn::Zero(d)), hn::Set(d, -kInfinity), hn::Log2(d, sum));
        // If the sum is ∞ or NaN, its logarithm is the sum itself.
        hn::Store(hn::IfThenElse(hn::Lt(sum, hn::Set(d, kInfinity)), log, sum), d, lse + r);
      }
      for (std::int64_t r = 0; r < count; ++r) lse[r] = (static_cast<double>(maxima[r0 + r]) + lse[r]) * kLn2;
      store_column(lse_, lse, rows + r0, count);
    }
  }

  /// Returns true if max_logit is requested.
  bool has_max_logit() const { return max_logit_.present(); }

  /// Writes max_logit, the largest score, for n queries. `rows` lists the queries in ascending order.
  /// `largest` holds each query's largest score times log2(e). A query whose sum of exponentials is NaN gets NaN.
  /// Requires has_max_logit().
  HWY_NOINLINE void write_max_logits(const std::int64_t* rows, std::int64_t n, const T* largest, const T* sums) const {
    constexpr std::int64_t kMost = 8;
    double logits[kMost];
    for (std::int64_t r0 = 0; r0 < n; r0 += kMost) {
      const std::int64_t count = std::min(kMost, n - r0);
      for (std::int64_t r = 0; r < count; ++r) {
        const T sum = sums[r0 + r];
        logits[r] = static_cast<double>(std::isnan(sum) ? sum : largest[r0 + r]) * kLn2;
      }
      store_column(max_logit_, logits, rows + r0, count);
    }
  }

  /// Writes the outputs of query i, which the gate threshold skips: lse = ∞, max_logit = −∞, and zeros in all others.
  void write_closed(std::int64_t i) const {
    std::fill_n(gated_.data, gated_.shape[0], T{0});
    store_row(y_, gated_.data, i, 0, p_.Dv);
    if (attn_.present()) store_row(attn_, gated_.data, i, 0, p_.Dv);
    for (std::int64_t j = 0; weights_.present() && j < weights_.cols; j += p_.Dv) {
      store_row(weights_, gated_.data, i, j, std::min(p_.Dv, weights_.cols - j));
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kHidden = -kInfinity;
    if (lse_.present()) store_row(lse_, &kInfinity, i, 0, 1);
    if (max_logit_.present()) store_row(max_logit_, &kHidden, i, 0, 1);
  }

 private:
  static bool consecutive(const std::int64_t* rows, std::int64_t n) { return rows[n - 1] - rows[0] == n - 1; }

  /// Stores one number for each of n queries. `rows` lists the queries in ascending order.
  static void store_column(const HeadRows<void>& to, const double* numbers, const std::int64_t* rows, std::int64_t n) {
    HeadRows<void> column = to;  // views the column (one number per query) as one row
    column.stride = to.row_stride;
    column.cols = to.rows;
    if (consecutive(rows, n)) return store_row(column, numbers, 0, rows[0], n);
    for (std::int64_t r = 0; r < n; ++r) store_row(column, numbers + r, 0, rows[r], 1);
  }

  /// Multiplies o by `inverse` in place. Writes all outputs of query i except lse and max_logit.
  void write_row(std::int64_t i, T* HWY_RESTRICT o, T inverse) const {
    const std::int64_t padded = gated_.shape[0];
    for (std::int64_t x = 0; x < padded; ++x) o[x] *= inverse;
    if (attn_.present()) store_row(attn_, o, i, 0, p_.Dv);
    const T* y = o;
    if (logits_.present()) {
      const T* z = gate_logits(logits_, i, p_.Dv, gate_.data);
      const bool in_place = y_.dtype == dtype_of<T>() && y_.stride == 1 && p_.Dv == padded;
      T* gated = in_place ? y_.template at<T>(i, 0, p_.Dv) : gated_.data;
      gate_row_forward(gated, o, z, padded, p_.gate_fn, p_.gate_op);
      y = in_place ? nullptr : gated;
    }
    if (y != nullptr) store_row(y_, y, i, 0, p_.Dv);
  }

  /// Returns the dtype of y, T or bf16, if rows of y and of the gate are whole vectors in memory.
  /// Otherwise returns DType::none.
  DType dense_dtype() const {
    const bool dense = lie_dense<T>(y_) || (std::is_same_v<T, float> && lie_dense<T, BFloat16>(y_));
    const bool gates = logits_.dtype == y_.dtype && logits_.stride == 1 && logits_.cols == p_.Dv;
    return dense && (!logits_.present() || gates) ? y_.dtype : DType::none;
  }

  template <typename Stored>
  void write_dense(std::int64_t i, std::int64_t n, const View<T, 2>& o, const T* inverses) const {
    const GatedRows<T, Stored> tile{y_.template at<Stored>(i, 0, p_.Dv),
                                    y_.row_stride,
                                    o.data,
                                    o.strides[0],
                                    logits_.present() ? logits_.template at<Stored>(i, 0, p_.Dv) : nullptr,
                                    logits_.row_stride,
                                    inverses};
    gate_rows_forward(tile, n, p_.Dv, p_.gate_fn, p_.gate_op);
  }

  const ForwardProblem& p_;
  HeadRows<void> y_, attn_, lse_, weights_, max_logit_;
  HeadRows<const void> logits_;
  View<T, 1> gate_, gated_;
  DType dense_as_;  // dtype of y if write_dense() can write it, otherwise DType::none
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_OUTPUT_ROWS_INL_
