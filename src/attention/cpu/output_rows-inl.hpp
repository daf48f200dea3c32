// SPDX-License-Identifier: Apache-2.0
// What the forward pass writes of a query; included once per Highway target.
#if defined(HEADGATE_ATTENTION_OUTPUT_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_OUTPUT_ROWS_INL_
#undef HEADGATE_ATTENTION_OUTPUT_ROWS_INL_
#else
#define HEADGATE_ATTENTION_OUTPUT_ROWS_INL_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/gate_rows-inl.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/problem.hpp"
#include "core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// The outputs of query head h of a sequence.
template <typename T>
class OutputRows {
 public:
  /// `gate`, `gated`: scratch of Dv elements, rounded up to vectors.
  OutputRows(const ForwardProblem& problem, const Sequence& sequence, std::int64_t h, const View<T, 1>& gate,
             const View<T, 1>& gated)
      : p_(problem),
        y_(query_rows(p_.outputs.y, sequence, h)),
        attn_(query_rows(p_.outputs.attn, sequence, h)),
        lse_(query_rows(p_.outputs.lse, sequence, h)),
        weights_(query_rows(p_.outputs.weights, sequence, h)),
        logits_(query_rows(p_.inputs.gate, sequence, h)),
        gate_(gate),
        gated_(gated) {}

  /// Normalises, gates and writes query i. o: Σ exp2(s − max) v, Dv rounded up to vectors, divided by the sum on
  /// return; sum: Σ exp2(s − max), sink included; max in units of log2(e).
  void write(std::int64_t i, T* HWY_RESTRICT o, T max, T sum) const {
    const std::int64_t padded = gated_.shape[0];
    const T inverse = sum == T{0} ? T{0} : T{1} / sum;
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
    if (!lse_.present()) return;
    const double lse = (static_cast<double>(max) + std::log2(static_cast<double>(sum))) * kLn2;
    store_row(lse_, &lse, i, 0, 1);
  }

  /// Query i, which the gate closes: it has not been computed.
  void write_closed(std::int64_t i) const {
    std::fill_n(gated_.data, gated_.shape[0], T{0});
    store_row(y_, gated_.data, i, 0, p_.Dv);
    if (attn_.present()) store_row(attn_, gated_.data, i, 0, p_.Dv);
    for (std::int64_t j = 0; weights_.present() && j < weights_.cols; j += p_.Dv) {
      store_row(weights_, gated_.data, i, j, std::min(p_.Dv, weights_.cols - j));
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (lse_.present()) store_row(lse_, &kInfinity, i, 0, 1);
  }

 private:
  const ForwardProblem& p_;
  HeadRows<void> y_, attn_, lse_, weights_;
  HeadRows<const void> logits_;
  View<T, 1> gate_, gated_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_OUTPUT_ROWS_INL_
