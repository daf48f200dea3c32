// SPDX-License-Identifier: Apache-2.0
// Finds the rows that a gate threshold leaves open; included once per Highway target.
#if defined(HEADGATE_ATTENTION_OPEN_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_OPEN_ROWS_INL_
#undef HEADGATE_ATTENTION_OPEN_ROWS_INL_
#else
#define HEADGATE_ATTENTION_OPEN_ROWS_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/gate_functions-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Returns true if |g(z[x])| ≤ limit for all x < n. Returns false if any g(z[x]) is NaN.
/// Requires that n is a multiple of kLanes<T>.
template <typename T>
HWY_NOINLINE bool gates_at_most(T limit, const T* HWY_RESTRICT z, std::int64_t n, GateFn fn) {
  bool all = true;
  with_gate(fn, [&](auto gate) HWY_ATTR {
    const Tag<T> d;
    for (std::int64_t x = 0; all && x < n; x += kLanes<T>) {
      all = hn::AllTrue(d, hn::Le(hn::Abs(gate.value(d, hn::LoadU(d, z + x))), hn::Set(d, limit)));
    }
  });
  return all;
}

/// Replaces z[x] by |g(z[x])| for x < n. Requires that n is a multiple of kLanes<T>.
template <typename T>
HWY_NOINLINE void gate_magnitudes(T* HWY_RESTRICT z, std::int64_t n, GateFn fn) {
  with_gate(fn, [&](auto gate) HWY_ATTR {
    const Tag<T> d;
    for (std::int64_t x = 0; x < n; x += kLanes<T>) hn::StoreU(hn::Abs(gate.value(d, hn::LoadU(d, z + x))), d, z + x);
  });
}

/// Tells which queries of head h the gate threshold skips.
/// A query is closed, and skipped, if all its |g(z)| are at most the threshold. Otherwise it is open.
template <typename T>
class OpenRows {
 public:
  OpenRows(const ForwardProblem& p, const Sequence& sequence, std::int64_t h)
      : logits_(query_rows(p.inputs.gate, sequence, h)), fn_(p.gate_fn), limit_(static_cast<T>(p.gate_threshold)) {}

  /// Calls open(i) or closed(i) for each query i of first … first + n, in ascending order.
  template <class Open, class Closed>
  void visit(std::int64_t first, std::int64_t n, const Open& open, const Closed& closed) const {
    if (logits_.cols == 1) return visit_headwise(first, n, open, closed);
    for (std::int64_t i = first; i < first + n; ++i) {
      if (row_closed(i)) {
        closed(i);
      } else {
        open(i);
      }
    }
  }

 private:
  static constexpr std::int64_t kMost = kMaxHeadDim;
  static_assert(kMost % kLanes<T> == 0);

  bool row_closed(std::int64_t i) const {
    HWY_ALIGN T z[kMost];
    load_row(z, logits_, i, 0, logits_.cols);
    const std::int64_t padded = round_up(logits_.cols, kLanes<T>);
    std::fill(z + logits_.cols, z + padded, z[0]);
    return gates_at_most(limit_, z, padded, fn_);
  }

  template <class Open, class Closed>
  void visit_headwise(std::int64_t first, std::int64_t n, const Open& open, const Closed& closed) const {
    HeadRows<const void> column = logits_;  // views the column of logits (one per query) as one row
    column.rows = 1;
    column.cols = logits_.rows;
    column.stride = logits_.row_stride;
    for (std::int64_t i0 = first; i0 < first + n; i0 += kMost) {
      const std::int64_t count = std::min(kMost, first + n - i0);
      HWY_ALIGN T z[kMost];
      load_row(z, column, 0, i0, count);
      std::fill(z + count, z + round_up(count, kLanes<T>), T{0});
      gate_magnitudes(z, round_up(count, kLanes<T>), fn_);
      for (std::int64_t i = 0; i < count; ++i) {
        if (z[i] <= limit_) {
          closed(i0 + i);
        } else {
          open(i0 + i);
        }
      }
    }
  }

  HeadRows<const void> logits_;
  GateFn fn_;
  T limit_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_OPEN_ROWS_INL_
