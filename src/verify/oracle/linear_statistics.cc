// SPDX-License-Identifier: Apache-2.0
#include "verify/oracle/linear_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "library/core/element.hpp"
#include "verify/oracle/linear_attention.hpp"
#include "verify/oracle/sums.hpp"

namespace headgate::reference {
namespace {

std::size_t row_of(TensorView LinearAttentionStatistics::*member) {
  std::size_t row = 0;
  while (kLinearStatistics[row].member != member) ++row;
  return row;
}

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// A number with its magnitude (error bound, see LinearForward).
struct Bounded {
  double value = 0.0, magnitude = 0.0;
};

void append(LinearFigureArray& to, const Bounded& x) {
  to.value.push_back(x.value);
  to.magnitude.push_back(x.magnitude);
}

/// Inputs of the recurrence with v and S_0 replaced, so that its outputs are the attention weights (see
/// linear_statistics.hpp).
class UnitValues {
 public:
  explicit UnitValues(const LinearAttentionInputs& in) : inputs(in) {
    const auto& [B, Hv, T, Dv] = in.v.shape;
    const std::int64_t D = in.q.shape[3], N = linear_sequences(in), columns = T + D + 1;
    v_.assign(at(B * Hv * T * columns), 0.0);
    for (std::int64_t row = 0; row < B * Hv * T; ++row) {
      v_[at(row * columns + row % T)] = 1.0;
      v_[at(row * columns + T + D)] = 1.0;
    }
    state_.assign(at(N * Hv * D * columns), 0.0);
    for (std::int64_t row = 0; row < N * Hv * D; ++row) state_[at(row * columns + T + row % D)] = 1.0;
    inputs.v = make_view(static_cast<const double*>(v_.data()), {B, Hv, T, columns});
    inputs.state = make_view(static_cast<const double*>(state_.data()), {N, Hv, D, columns});
  }

  LinearAttentionInputs inputs;

 private:
  std::vector<double> v_, state_;
};

class FiguresPass {
 public:
  FiguresPass(LinearStatistics& out, const LinearAttentionInputs& in, const LinearAttentionOptions& options,
              const LinearWeightRows& rows)
      : out_(out),
        in_(in),
        N_(linear_sequences(in)),
        Hv_(in.v.shape[1]),
        Ho_(std::max(in.q.shape[1], Hv_)),
        T_(in.q.shape[2]),
        D_(in.q.shape[3]),
        Dv_(in.v.shape[3]),
        roundoff_(in.q.dtype == DType::f64 ? 0x1p-53 : 0x1p-24),
        floor_(weight_floor(in.q.dtype)),
        underflow_((in.q.dtype == DType::f64 ? 0x1p-1021 : 0x1p-125) * (1.0 + static_cast<double>(D_) / 8.0)),
        rows_(rows),
        last_(linear_forward(in, options)) {}

  void run() {
    for (std::int64_t b = 0; b < in_.q.shape[0]; ++b) {
      for (std::int64_t ho = 0; ho < Ho_; ++ho) {
        for (std::int64_t t = 0; t < T_; ++t) add_query((b * Ho_ + ho) * T_ + t);
      }
    }
    for (std::int64_t n = 0; n < N_; ++n) {
      for (std::int64_t ho = 0; ho < Ho_; ++ho) add_means(n, ho);
      for (std::int64_t h = 0; h < Hv_; ++h) {
        add_gates(n, h);
        add_last_state(n * Hv_ + h);
      }
    }
  }

 private:
  struct Sequence {
    std::int64_t b, first, T;
  };
  Sequence sequence(std::int64_t n) const {
    if (!in_.cu_seqlens.present()) return {n, 0, T_};
    const std::int64_t first = load_index(in_.cu_seqlens, n);
    return {0, first, load_index(in_.cu_seqlens, n + 1) - first};
  }
  /// Returns the first token of the sequence that contains token t.
  std::int64_t first_of(std::int64_t t) const {
    std::int64_t first = 0;
    for (std::int64_t n = 0; in_.cu_seqlens.present() && n < N_; ++n) {
      const std::int64_t begin = load_index(in_.cu_seqlens, n);
      if (begin <= t && t < load_index(in_.cu_seqlens, n + 1)) first = begin;
    }
    return first;
  }

  /// Returns x / total, or 0 if the total is 0. `most` is the largest possible quotient.
  /// If the error of `total` may exceed a quarter of its value, the error bound permits any quotient up to `most`.
  /// This assumes that the tolerance rule multiplies magnitudes by less than 64 unit roundoffs.
  Bounded share(const Bounded& x, const Bounded& total, double most) const {
    if (total.magnitude == 0.0) return {};
    const double value = total.value == 0.0 ? 0.0 : x.value / total.value;
    if (64.0 * roundoff_ * total.magnitude > 0.25 * total.value) return {value, most / roundoff_};
    return {value, (x.magnitude + underflow_ + value * total.magnitude) * 4.0 / 3.0 / total.value + value};
  }

  void add_query(std::int64_t row) {
    const std::int64_t t = row % T_, first = first_of(t);
    const auto weight = [&](std::int64_t j) -> Bounded {
      return {rows_.weights.value[at(row * T_ + j)], rows_.weights.magnitude[at(row * T_ + j)]};
    };
    Bounded absolute, moment;
    for (std::int64_t j = first; j <= t; ++j) {
      const auto distance = static_cast<double>(t - j);
      absolute = {absolute.value + std::abs(weight(j).value), absolute.magnitude + weight(j).magnitude};
      moment = {moment.value + distance * std::abs(weight(j).value), moment.magnitude + distance * weight(j).magnitude};
    }
    const Bounded of_first = weight(first);
    using S = LinearAttentionStatistics;
    put(&S::first, of_first);
    put(&S::first_share, share({std::abs(of_first.value), of_first.magnitude}, absolute, 1.0));
    put(&S::reach, share(moment, absolute, static_cast<double>(t - first)));
    put(&S::absolute_sum, absolute);
    put(&S::weight_sum, {rows_.sum.value[at(row)], rows_.sum.magnitude[at(row)]});
  }

  void add_means(std::int64_t n, std::int64_t ho) {
    const Sequence s = sequence(n);
    const auto count = static_cast<double>(std::max<std::int64_t>(s.T - 1, 1));
    for (std::size_t figure = 0; figure < kQueryStatistics; ++figure) {
      const LinearFigureArray& of = out_.outputs[figure];
      Bounded mean;
      for (std::int64_t t = 1; t < s.T; ++t) {
        const std::size_t row = at((s.b * Ho_ + ho) * T_ + s.first + t);
        mean = {mean.value + of.value[row] / count, mean.magnitude + of.magnitude[row] / count};
      }
      append(out_.outputs[kQueryStatistics + figure], mean);
    }
  }

  void add_gates(std::int64_t n, std::int64_t h) {
    const Sequence s = sequence(n);
    CompensatedSum decays, logarithms, betas;
    double decay_bound = 0.0, beta_bound = 0.0;
    const std::int64_t width = in_.decay.present() ? in_.decay.shape[3] : 1;
    const auto tokens = static_cast<double>(std::max<std::int64_t>(s.T, 1)), all = tokens * static_cast<double>(width);
    for (std::int64_t t = s.first; t < s.first + s.T; ++t) {
      for (std::int64_t d = 0; d < width; ++d) {
        const double g = in_.decay.present() ? load(in_.decay, s.b, h, t, d) : 0.0;
        const double e = std::exp(g);
        logarithms.add(g);
        decays.add(e);
        // e^g has an error of 3 + 2|g| unit roundoffs. Divides by 8, because the tolerance rule multiplies magnitudes
        // by at least 8.
        decay_bound += (e == 0.0 ? 0.0 : e * (1.0 + (3.0 + 2.0 * std::abs(g)) / 8.0)) + floor_;
      }
      const double b = in_.beta.present() ? load(in_.beta, s.b, in_.beta.shape[1] == 1 ? 0 : h, t, 0) : 1.0;
      betas.add(b);
      beta_bound += std::abs(b);
    }
    const double logarithm = logarithms.value() / all;
    const double half_life = logarithm >= 0.0 ? std::numeric_limits<double>::infinity() : std::log(2.0) / -logarithm;
    using S = LinearAttentionStatistics;
    put(&S::mean_decay, {decays.value() / all, decay_bound / all});
    put(&S::mean_beta, {betas.value() / tokens, beta_bound / tokens});
    put(&S::half_life, {half_life, std::abs(half_life)});
  }

  /// Adds the Frobenius norm ‖S‖ and the effective rank ‖S‖⁴ / ‖SᵀS‖² of the last state S.
  /// The error bounds use E, the error of S, and σ, the singular values of S, of which σ₁ is the largest:
  /// - ‖S‖ has an error of ‖E‖. Thus ‖S‖⁴ has a relative error of 4 ‖E‖ / ‖S‖.
  /// - ‖SᵀS‖² = Σ σ⁴ has an error of 4 ‖E‖ (Σ σ⁶)^½ ≤ 4 ‖E‖ σ₁ (Σ σ⁴)^½. Thus its relative error is at most
  ///   4 ‖E‖ / σ₁, and σ₁ is at least ‖S‖ / √rank.
  /// A state of zeros has rank 0. If the state may be zero in the compute type, the error bound permits any rank.
  void add_last_state(std::int64_t head) {
    const double* const s = last_.state.data() + head * D_ * Dv_;
    const double* const bounds = last_.magnitude.state.data() + head * D_ * Dv_;
    double largest = 0.0;
    for (std::int64_t x = 0; x < D_ * Dv_; ++x) largest = std::max(largest, std::abs(s[x]));
    // `unit` scales the elements of s, so that their squares do not underflow.
    const double unit = largest > 0.0 && std::isfinite(largest) ? largest : 1.0;
    double squares = 0.0, errors = 0.0, fourth = 0.0;
    for (std::int64_t x = 0; x < D_ * Dv_; ++x) {
      squares += s[x] / unit * (s[x] / unit);
      const bool is_zero = s[x] == 0.0 && bounds[x] == 0.0;
      errors += is_zero ? 0.0 : std::pow((bounds[x] + underflow_) / unit, 2);
    }
    for (std::int64_t i = 0; i < Dv_; ++i) {
      for (std::int64_t j = 0; j < Dv_; ++j) {
        double product = 0.0;
        for (std::int64_t d = 0; d < D_; ++d) product += s[d * Dv_ + i] / unit * (s[d * Dv_ + j] / unit);
        fourth += product * product;
      }
    }
    const double norm = std::sqrt(squares), error = std::sqrt(errors);
    const auto most = static_cast<double>(std::min(D_, Dv_));
    using S = LinearAttentionStatistics;
    put(&S::state_norm, {unit * norm, unit * (norm + error)});
    if (norm == 0.0) return put(&S::effective_rank, {0.0, error == 0.0 ? 0.0 : most / roundoff_});
    const double relative = 4.0 * (1.0 + std::sqrt(most)) * error / norm;
    const double rank = squares / fourth * squares;
    put(&S::effective_rank,
        {rank, 64.0 * roundoff_ * relative > 0.25 ? most / roundoff_ : rank * (1.0 + 2.0 * relative)});
  }

  void put(TensorView LinearAttentionStatistics::*member, const Bounded& x) { append(out_.outputs[row_of(member)], x); }

  LinearStatistics& out_;
  const LinearAttentionInputs& in_;
  std::int64_t N_, Hv_, Ho_, T_, D_, Dv_;
  double roundoff_;
  // The smallest normal number divided by the unit roundoff. It is added to the magnitude of each e^g, because kernels
  // may return 0 for a subnormal e^g.
  double floor_;
  // Smallest magnitude (error bound) of a weight. The tolerance rule multiplies it by at least 8 unit roundoffs. The
  // product is then at least 8 + D smallest subnormals.
  double underflow_;
  const LinearWeightRows& rows_;
  LinearForward last_;
};

}  // namespace

LinearWeightRows linear_weights(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options) {
  const UnitValues unit(inputs);
  const LinearForward forward = linear_forward(unit.inputs, options);
  const std::int64_t T = inputs.q.shape[2], D = inputs.q.shape[3], columns = T + D + 1;
  const std::int64_t rows = inputs.q.shape[0] * std::max(inputs.q.shape[1], inputs.v.shape[1]) * T;
  LinearWeightRows out;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < columns; ++c) {
      LinearFigureArray& to = c < T ? out.weights : c < T + D ? out.state_query : out.sum;
      const std::size_t from = at(row * columns + c);
      append(to, {forward.y[from], forward.magnitude.y[from]});
    }
  }
  return out;
}

LinearStatistics linear_statistics(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options,
                                   const LinearWeightRows& rows) {
  LinearStatistics out;
  FiguresPass(out, inputs, options, rows).run();
  return out;
}

}  // namespace headgate::reference
