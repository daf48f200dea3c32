// SPDX-License-Identifier: Apache-2.0
#include "verify/oracle/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "library/core/element.hpp"
#include "library/core/sum_blocks.hpp"
#include "verify/oracle/packed.hpp"
#include "verify/oracle/sinks.hpp"
#include "verify/oracle/sums.hpp"

namespace headgate::reference {
namespace {

using Member = TensorView AttentionStatistics::*;

std::size_t row_of(Member member) {
  std::size_t row = 0;
  while (kStatisticsOutputs[row].member != member) ++row;
  return row;
}

/// Stands for −log p if p is 0. It is slightly more than 744.4, which is −log of the smallest f64 number.
constexpr double kLongestLog = 745.2;

double minus_log(double p) { return p == 0.0 ? kLongestLog : -std::log(p); }

/// A number with error bounds: its magnitude, and the bound of its nearly equal terms (see Backward in oracle.hpp).
struct Bounded {
  double value = 0.0, magnitude = 0.0, like_terms = 0.0;
};

/// A sum with error bounds. The sum is split into the same blocks as in the kernels.
class BoundedSum {
 public:
  explicit BoundedSum(double roundoff) : roundoff_(roundoff) {}
  void add(double term, double magnitude, std::int64_t block) {
    sum_.add(term);
    magnitude_ += magnitude;
    like_.add(term, block, roundoff_);
  }
  void add(const Bounded& term) {
    sum_.add(term.value);
    magnitude_ += term.magnitude;
    inherited_ += term.like_terms;
  }
  Bounded times(double factor) const {
    return {factor * sum_.value(), factor * magnitude_, factor * (like_.bound() + inherited_)};
  }

 private:
  double roundoff_;
  CompensatedSum sum_;
  LikeTerms like_;
  double magnitude_ = 0.0, inherited_ = 0.0;
};

class Pass {
 public:
  Pass(Statistics& out, const Forward& forward, const AttentionInputs& in, const AttentionOptions& options,
       const StatisticsSelection& selection, std::int64_t top_keys)
      : out_(out),
        f_(forward),
        in_(in),
        options_(options),
        selection_(selection),
        top_keys_(top_keys),
        T_(in.q.shape[2]),
        S_(key_columns(in)),
        roundoff_(in.q.dtype == DType::f64 ? 0x1p-53 : 0x1p-24),
        floor_(weight_floor(in.q.dtype)),
        gated_(in.gate.present() && options.gate_fn != GateFn::none && options.gate_op == GateOp::mul) {}

  void run() {
    for (std::int64_t b = 0; b < in_.q.shape[0]; ++b) {
      for (std::int64_t h = 0; h < in_.q.shape[1]; ++h) {
        b_ = b;
        h_ = h;
        head_ = b * in_.q.shape[1] + h;
        add_head();
      }
    }
  }

 private:
  void append(Member member, const Bounded& x) {
    StatisticsArray& to = out_.outputs[row_of(member)];
    to.value.push_back(x.value);
    to.magnitude.push_back(x.magnitude);
    to.like_terms.push_back(x.like_terms);
  }

  /// Returns the weight of key j for query i; 0 if the sequence has no key j.
  Bounded weight(std::int64_t i, std::int64_t j) const {
    if (j >= S_) return {};
    const auto at = static_cast<std::size_t>((head_ * T_ + i) * S_ + j);
    return {f_.weights[at], f_.magnitude.weights[at] + f_.weights[at] * subtracted(i), 0.0};
  }
  double subtracted(std::int64_t i) const {
    return subtracted_from_scores(f_.lse[static_cast<std::size_t>(head_ * T_ + i)]);
  }
  /// Returns whether query i sees key j. Weights of hidden keys have magnitude 0.
  bool visible(std::int64_t i, std::int64_t j) const { return weight(i, j).magnitude > 0.0; }

  /// Returns whether means over queries include query i.
  /// Under causal masking, they exclude the query at position 0, because it sees only its own key.
  bool counts(std::int64_t i) const {
    const std::int64_t at = i + (in_.query_offsets.present() ? load_index(in_.query_offsets, b_) : S_ - T_);
    const bool causal = options_.causality == Causality::causal && options_.window_right >= -1;
    return at != 0 || !(causal || options_.window_right == 0);
  }

  void add_head() {
    using S = AttentionStatistics;
    std::array<BoundedSum, kRowStatistics> sums{BoundedSum(roundoff_), BoundedSum(roundoff_), BoundedSum(roundoff_),
                                                BoundedSum(roundoff_), BoundedSum(roundoff_)};
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < T_; ++i) {
      const std::array<Bounded, kRowStatistics> figures{largest(i), entropy(i), first(i), first_gated(i), in_window(i)};
      for (std::size_t n = 0; n < kRowStatistics; ++n) {
        append(kStatisticsOutputs[n].member, figures[n]);
        if (counts(i)) sums[n].add(figures[n]);
      }
      counted += counts(i) ? 1 : 0;
      for (std::int64_t n = 0; n < selection_.keys.shape[3]; ++n) {
        append(&S::key_weights, weight(i, load_index(selection_.keys, n)));
      }
      add_top(i);
    }
    const double share = counted > 0 ? 1.0 / static_cast<double>(counted) : 0.0;
    for (std::size_t n = 0; n < kRowStatistics; ++n) {
      append(kStatisticsOutputs[kRowStatistics + 1 + n].member, sums[n].times(share));
    }
    for (std::int64_t n = 0; n < selection_.keys.shape[3]; ++n) {
      append(&S::mean_key_weights, received(load_index(selection_.keys, n), /*by_counted=*/true).times(share));
    }
    for (std::int64_t j = 0; j < S_; ++j) append(&S::key_mass, received(j).times(1.0));
    for (std::int64_t n = 0; n < selection_.queries.shape[3]; ++n) {
      for (std::int64_t j = 0; j < S_; ++j) append(&S::rows, weight(load_index(selection_.queries, n), j));
    }
  }

  Bounded largest(std::int64_t i) const {
    Bounded out;
    for (std::int64_t j = 0; j < S_; ++j) {
      const Bounded p = weight(i, j);
      out.value = std::max(out.value, p.value);
      out.magnitude = std::max(out.magnitude, p.magnitude);
    }
    return out;
  }

  /// Returns the entropy −Σ p log p. An error δ of a score changes its term of the entropy by at most p |1 − log p| δ.
  Bounded entropy(std::int64_t i) const {
    BoundedSum sum(roundoff_);
    for (std::int64_t j = 0; j < S_; ++j) {
      if (!visible(i, j)) continue;
      const Bounded p = weight(i, j);
      sum.add(p.value * minus_log(p.value), p.magnitude * (1.0 + minus_log(p.value)), j / kForwardKeys);
    }
    const auto row = static_cast<std::size_t>(head_ * T_ + i);
    if (in_.sinks.present() && std::isfinite(f_.lse[row])) {
      const double x = f_.lse[row] - sink_of(in_, b_, h_, i);
      if (std::isfinite(x)) {
        const double p = std::exp(-x);
        sum.add({p * x, (p + floor_) * (1.0 + std::abs(x)) * f_.magnitude.lse[row], 0.0});
      }
    }
    return sum.times(1.0);
  }

  Bounded first(std::int64_t i) const { return S_ > 0 ? weight(i, 0) : Bounded{}; }

  Bounded first_gated(std::int64_t i) const {
    if (!gated_) return {};
    const std::int64_t features = in_.gate.shape[3];
    double mean = 0.0;
    double magnitude = 0.0;
    for (std::int64_t d = 0; d < features; ++d) {
      const double z = load(in_.gate, b_, h_, i, d);
      mean += gate_value(options_.gate_fn, z).value / static_cast<double>(features);
      magnitude += gate_magnitude(options_.gate_fn, z, in_.q.dtype) / static_cast<double>(features);
    }
    const Bounded p = first(i);
    return {p.value * mean, p.magnitude * magnitude, 0.0};
  }

  Bounded in_window(std::int64_t i) const {
    BoundedSum sum(roundoff_);
    const std::int64_t at = i + (in_.query_offsets.present() ? load_index(in_.query_offsets, b_) : S_ - T_);
    for (std::int64_t j = 0; j < S_; ++j) {
      if (std::abs(at - j) > selection_.window) continue;
      const Bounded p = weight(i, j);
      sum.add(p.value, p.magnitude, j / kForwardKeys);
    }
    return sum.times(1.0);
  }

  /// Appends the largest top_keys_ weights of the row, padded with 0 if there are fewer.
  void add_top(std::int64_t i) {
    std::vector<double> all;
    for (std::int64_t j = 0; j < S_; ++j) all.push_back(weight(i, j).value);
    std::sort(all.begin(), all.end(), std::greater<>());
    all.resize(static_cast<std::size_t>(std::max(top_keys_, S_)));
    const double magnitude = largest(i).magnitude;
    const double logits = f_.magnitude.lse[static_cast<std::size_t>(head_ * T_ + i)] + subtracted(i);
    for (std::int64_t n = 0; n < top_keys_; ++n) {
      const double p = all[static_cast<std::size_t>(n)];
      append(&AttentionStatistics::topk_weight, {p, std::min(magnitude, (p + floor_) * logits), 0.0});
    }
  }

  /// Returns Σᵢ p_ij, the weight that key j receives. If `by_counted` is true, sums only over queries that counts()
  /// includes.
  BoundedSum received(std::int64_t j, bool by_counted = false) const {
    BoundedSum sum(roundoff_);
    if (j >= S_) return sum;
    for (std::int64_t i = 0; i < T_; ++i) {
      if (by_counted && !counts(i)) continue;
      const Bounded p = weight(i, j);
      sum.add(p.value, p.magnitude, i / kQueryTile);
    }
    return sum;
  }

  Statistics& out_;
  const Forward& f_;
  const AttentionInputs& in_;
  const AttentionOptions& options_;
  const StatisticsSelection& selection_;
  std::int64_t top_keys_, T_, S_;
  double roundoff_;
  double floor_;  // smallest error bound of a weight, in unit roundoffs (weight_floor in sums.hpp)
  bool gated_;
  std::int64_t b_ = 0, h_ = 0, head_ = 0;
};

}  // namespace

Statistics statistics(const Forward& forward, const AttentionInputs& inputs, const AttentionOptions& options,
                      const StatisticsSelection& selection, std::int64_t top_keys) {
  if (inputs.cu_seqlens_q.present()) return packed_statistics(forward, inputs, options, selection, top_keys);
  Statistics out;
  Pass(out, forward, inputs, options, selection, top_keys).run();
  return out;
}

}  // namespace headgate::reference
