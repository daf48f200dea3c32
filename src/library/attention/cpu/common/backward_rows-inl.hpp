// SPDX-License-Identifier: Apache-2.0
// Prepares query rows for the products of the backward pass; included once per Highway target.
#if defined(HEADGATE_ATTENTION_BACKWARD_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_BACKWARD_ROWS_INL_
#undef HEADGATE_ATTENTION_BACKWARD_ROWS_INL_
#else
#define HEADGATE_ATTENTION_BACKWARD_ROWS_INL_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "library/attention/cpu/common/gate_rows-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Rows of one query head that prepare_row() and prepare_rows() read and write.
struct QueryRows {
  QueryRows(const BackwardProblem& p, const Sequence& sequence, std::int64_t head)
      : dy(query_rows(p.incoming.dy, sequence, head)),
        y(query_rows(p.saved.y, sequence, head)),
        attn(query_rows(p.saved.attn, sequence, head)),
        gate(query_rows(p.inputs.gate, sequence, head)),
        lse(query_rows(p.saved.lse, sequence, head)),
        dlse(query_rows(p.incoming.dlse, sequence, head)),
        sinks(query_rows(p.inputs.sinks, sequence, head)),
        dgate(query_rows(p.gradients.dgate, sequence, head)),
        dsinks(p.sinks_by_query ? query_rows(p.gradients.dsinks, sequence, head) : HeadRows<void>(TensorView{}, 0, 0)) {
  }

  /// Returns true if all rows can be read and written in place.
  /// All rows must be dense. gate and dgate must be both elementwise or both absent.
  template <typename T>
  bool all_dense() const {
    const auto dense = [](const auto& rows) { return !rows.present() || lie_dense<T>(rows); };
    return dense(dy) && dense(y) && dense(attn) && dense(gate) && dense(dgate) && gate.present() == dgate.present() &&
           (!gate.present() || gate.cols == y.cols);
  }

  HeadRows<const void> dy, y, attn, gate, lse, dlse, sinks;
  HeadRows<void> dgate;
  HeadRows<void> dsinks;  ///< absent if all queries of a head share one sink
};

/// Prepares query i for the products.
///   d_o            receives the gradient of the ungated output (Dv rounded up to vectors);
///   from.dgate     receives dz, the gradient of the gate logits, unless absent;
///   lse            receives lse · log2(e), rounded to T, or ∞ if the query sees no key;
///   lse_error      receives the rounding error of `lse`;
///   delta          receives Δ − dlse, where Δ = rowsum(d_o ∘ o);
///   sink_part      is increased by the query's contribution to dsinks;
///   from.dsinks    receives this contribution, unless absent;
///   own            is scratch for one row of dy, y, attn, gate and dgate.
template <typename T, class Scratch>
void prepare_row(const BackwardProblem& p, const Scratch& own, const QueryRows& from, std::int64_t i, T* d_o, T* lse,
                 T* lse_error, T* delta, double* sink_part) {
  const GateRowOperands<T> row{padded_row(from.dy, i, own.dy.data),
                               padded_row(from.y, i, own.y.data),
                               from.attn.present() ? padded_row(from.attn, i, own.attn.data) : nullptr,
                               from.gate.present() ? gate_logits(from.gate, i, p.Dv, own.gate.data) : nullptr,
                               d_o,
                               own.dgate.data};
  *delta = gate_row_backward(row, round_up(p.Dv, kLanes<T>), p.gate_fn, p.gate_op);
  if (from.dgate.present()) {  // check_backward() has made sure that there is a gate
    if (p.gate_headwise) {
      double sum = 0;
      for (std::int64_t x = 0; x < p.Dv; ++x) sum += static_cast<double>(row.dz[x]);
      row.dz[0] = static_cast<T>(sum);
    }
    store_row(from.dgate, row.dz, i, 0, from.dgate.cols);
  }
  if (from.dlse.present()) {
    T dlse = 0;
    load_row(&dlse, from.dlse, i, 0, 1);
    *delta -= dlse;
  }
  double lse_natural = 0;
  load_row(&lse_natural, from.lse, i, 0, 1);
  const bool nothing_seen = lse_natural == -std::numeric_limits<double>::infinity();
  const SplitLse<T> split = split_lse<T>(lse_natural, from.lse.dtype);
  *lse = nothing_seen ? std::numeric_limits<T>::infinity() : split.value;
  *lse_error = split.rest;
  if (!from.sinks.present()) return;
  double sink = 0;
  load_row(&sink, from.sinks, i, 0, 1);
  const double term = nothing_seen ? 0.0 : std::exp(sink - lse_natural) * -static_cast<double>(*delta);
  if (from.dsinks.present()) store_row(from.dsinks, &term, i, 0, 1);
  *sink_part += term;
}

/// Prepares queries i … i + n like prepare_row(). Ignores sinks. Requires QueryRows::all_dense().
template <typename T>
HWY_NOINLINE void prepare_rows(const BackwardProblem& p, const QueryRows& from, std::int64_t i, std::int64_t n,
                               const View<T, 2>& d_o, T* HWY_RESTRICT lse, T* HWY_RESTRICT lse_error,
                               T* HWY_RESTRICT delta) {
  const auto row_of = [&](std::int64_t r) HWY_ATTR {
    const auto at = [&](const HeadRows<const void>& rows)
                        HWY_ATTR { return rows.present() ? rows.at<T>(i + r, 0, p.Dv) : nullptr; };
    return GateRowOperands<T>{at(from.dy),   at(from.y),
                              at(from.attn), at(from.gate),
                              d_o.at(r),     from.dgate.present() ? from.dgate.at<T>(i + r, 0, p.Dv) : nullptr};
  };
  gate_rows_backward(row_of, n, p.Dv, p.gate_fn, p.gate_op, delta);
  const auto as_column = [](HeadRows<const void> rows) {  // views n rows of one element as one row of n elements
    rows.stride = rows.row_stride;
    rows.cols = rows.rows;
    return rows;
  };
  if (from.dlse.present()) {
    load_row(lse, as_column(from.dlse), 0, i, n);
    for (std::int64_t r = 0; r < n; ++r) delta[r] -= lse[r];
  }
  constexpr std::int64_t kMost = 16;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double natural[kMost];
  for (std::int64_t r0 = 0; r0 < n; r0 += kMost) {
    const std::int64_t rows = std::min(kMost, n - r0);
    load_row(natural, as_column(from.lse), 0, i + r0, rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      const SplitLse<T> split = split_lse<T>(natural[r], from.lse.dtype);
      lse[r0 + r] = natural[r] == -kInfinity ? std::numeric_limits<T>::infinity() : split.value;
      lse_error[r0 + r] = split.rest;
    }
  }
}

/// Returns true if the rounding error of lse · log2(e) matters. With large |lse| it can make exp2(s − lse) far exceed
/// 1.
template <typename T>
bool has_coarse_lse(T lse) {
  constexpr T kLeast = 512;
  return std::abs(lse) >= kLeast;
}

/// Corrects a weight p = exp2(s − lse) for the rounding error `lse_error` of lse.
/// Returns min(p · factor, 1), where factor = 2^−lse_error.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V corrected_weight(D d, V p, V factor) {
  const auto one = hn::Set(d, hn::TFromD<D>{1});
  const auto scaled = hn::Mul(p, factor);
  return hn::IfThenElse(hn::Gt(scaled, one), one, scaled);  // keeps NaN
}

/// Applies corrected_weight() to n weights.
template <typename T>
HWY_NOINLINE void correct_weights(T* HWY_RESTRICT weights, std::int64_t n, T lse_error) {
  const Tag<T> d;
  const auto factor = hn::Set(d, std::exp2(-lse_error));
  update_row(weights, n, [d, factor](auto p) HWY_ATTR { return corrected_weight(d, p, factor); });
}

/// Returns 0 where p is 0, otherwise x.
/// Hidden keys have p = 0, but their x may be NaN, because their products may overflow.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V zero_where_zero(D d, V p, V x) {
  return hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), x);
}

/// Writes factor · sums to the rows of `to` from `first` on. Does nothing if `to` is absent.
/// `scaled` is scratch for one row.
template <typename T>
void write_rows(const HeadRows<void>& to, const View<T, 2>& sums, std::int64_t first, T factor,
                T* HWY_RESTRICT scaled) {
  if (!to.present()) return;
  for (std::int64_t n = 0; n < sums.shape[0]; ++n) {
    const T* HWY_RESTRICT sum = sums.at(n);
    for (std::int64_t x = 0; x < to.cols; ++x) scaled[x] = factor * sum[x];
    store_row(to, scaled, first + n, 0, to.cols);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BACKWARD_ROWS_INL_
