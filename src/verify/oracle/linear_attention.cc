// SPDX-License-Identifier: Apache-2.0
#include "verify/oracle/linear_attention.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "library/core/element.hpp"
#include "verify/oracle/snapshots.hpp"
#include "verify/oracle/sums.hpp"

// This file bounds the rounding errors of the state from token to token.
//
// Recurrence. A token decays a column s of the state S, one per feature of v, to a = diag(e^g) s.
// The new column is (I − β k kᵀ) a + k β v. The token thus multiplies s by F = (I − β k kᵀ) diag(e^g).
// The backward pass multiplies the columns of dS by Fᵀ.
//
// Errors of one token. A token multiplies the column's earlier error by F and adds rounding errors of its own. A sum of
// absolute values bounds its own errors: ‖a‖ + ‖k‖ |β| (|v| + |a|ᵀ|k|).
//
// Accumulated errors. Each column has one bound: the Euclidean norm of its error. Separate bounds for its elements
// would replace −β k kᵀ by |β| |k| |k|ᵀ. For correlated keys, they would grow exponentially although the recurrence
// contracts, and accept any result.
// - A token multiplies the norm by at most ‖F‖ ≤ max e^g · max(1, |1 − β ‖k‖²|).
//   This is at most 1 if ‖k‖ ≤ 1 and 0 ≤ β ≤ 2.
// - For D = 1, F may be 0, but this bound is kept. Kernels compute aᵀk for two tokens at once, and round the second
//   product before they correct it for the first token's update.
// - The error of one element of a column is at most the norm. The error of a product xᵀs is at most ‖x‖ times the norm.
//
// Two kinds of rounding errors add up differently over tokens:
// - Errors of sums and products have either sign. They form a random walk, so their squares are added.
// - Errors of e^g may be equal at every token, for example if all tokens have the same g. They drift, so they are added
//   directly. A token adds (3 + 2|g|) unit roundoffs. The magnitude is an eighth of this number, because the tolerance
//   rule multiplies magnitudes by at least 8 unit roundoffs.
//
// With native16, kernels round the factors of products to bf16: q, k, the state, and what tokens write to it. The same
// sums and norms bound these errors, in unit roundoffs of bf16, with two differences:
// - There is no drift, because e^g stays f32.
// - The bound is doubled, because both factors of a product are rounded. In heads of one feature, these errors do not
//   average out, and kernels come close to the bound.
// Errors of gradients are bounded in the same way, by a second backward pass without drift.

namespace headgate::reference {
namespace {

using Row = std::vector<double>;

/// Largest error of a number that native16 flushes to 0, in unit roundoffs of bf16. It is 2⁻¹²⁶ / 2⁻⁸: the smallest
/// normal number divided by the unit roundoff.
constexpr double kFlushed = 0x1p-118;

/// native16 rounds both factors of a product.
constexpr double kRoundedFactors = 2.0;

/// Sizes of one problem, and how heads of q, k and y map to states.
struct Sizes {
  std::int64_t B, Hq, Hk, Hv, Ho, T, D, Dv;
  double scale;
  /// Smallest error bound of e^g, in unit roundoffs. Not 0, because kernels may return 0 for an e^g below the smallest
  /// normal number.
  double floor;
  bool delta, gated;
  bool drifts = true;  // whether the error bounds include errors of e^g

  Sizes(const LinearAttentionInputs& in, const LinearAttentionOptions& options)
      : B(in.q.shape[0]),
        Hq(in.q.shape[1]),
        Hk(in.k.shape[1]),
        Hv(in.v.shape[1]),
        Ho(std::max(Hq, Hv)),
        T(in.q.shape[2]),
        D(in.q.shape[3]),
        Dv(in.v.shape[3]),
        scale(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(D)))),
        floor(weight_floor(in.q.dtype)),
        delta(options.rule == LinearRule::delta || options.rule == LinearRule::gated_delta),
        gated(in.decay.present()) {}

  /// Returns the number of heads of y that read each state. State h is read by heads h · readers() … (h + 1) ·
  /// readers() − 1.
  std::int64_t readers() const { return Ho / Hv; }
  std::int64_t query_of(std::int64_t y_head) const { return y_head / (Ho / Hq); }
  std::int64_t key_of(std::int64_t state) const { return state / (Hv / Hk); }
};

/// The tokens of sequence n: rows first, …, first + T − 1 of batch b.
struct Sequence {
  std::int64_t n, b, first, T;
};

std::vector<Sequence> sequences_of(const LinearAttentionInputs& in) {
  std::vector<Sequence> out;
  for (std::int64_t n = 0; n < linear_sequences(in); ++n) {
    if (!in.cu_seqlens.present()) {
      out.push_back({n, n, 0, in.q.shape[2]});
      continue;
    }
    const std::int64_t first = load_index(in.cu_seqlens, n);
    out.push_back({n, 0, first, load_index(in.cu_seqlens, n + 1) - first});
  }
  return out;
}

double dot(const Row& a, const Row& b) {
  double sum = 0.0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

double norm(const Row& x) { return std::sqrt(dot(x, x)); }

Row load_row(const ConstTensorView& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  Row row;
  for (std::int64_t d = 0; d < x.shape[3]; ++d) row.push_back(load(x, b, h, i, d));
  return row;
}

/// A row of q or k, normalised if l2_norm is set.
struct UnitRow {
  Row x;
  double factor = 1.0;  // 1/√(Σ x² + eps); 1 without l2_norm
};

UnitRow load_unit_row(const ConstTensorView& view, const LinearAttentionOptions& options, std::int64_t b,
                      std::int64_t h, std::int64_t i) {
  UnitRow out{load_row(view, b, h, i)};
  if (!options.l2_norm) return out;
  const double sum = dot(out.x, out.x) + *options.l2_norm;
  out.factor = sum == 0.0 ? 0.0 : 1.0 / std::sqrt(sum);
  for (double& x : out.x) x *= out.factor;
  return out;
}

/// Bound on the rounding error of one column of S or dS, as magnitudes (see LinearForward).
/// Both members are Euclidean norms:
/// - `drift`: errors of e^g, which add up over tokens
/// - `walk`: errors of sums and products, whose squares add up
struct ColumnError {
  double drift = 0.0;
  double walk = 0.0;
  double bound() const { return drift + walk; }

  /// Updates the bounds for one token: multiplies them by `growth` and adds the rounding errors of the token.
  /// Uses hypot, because the squares of small errors would underflow.
  void pass(double growth, double own_walk, double own_drift) {
    walk = std::hypot(growth * walk, own_walk);
    drift = growth * drift + own_drift;
  }
};

/// A state, or the gradient of a state, with the error bounds of its columns.
struct State {
  Row s;                            // (D,Dv)
  std::vector<ColumnError> errors;  // (Dv)
};

State load_state(const ConstTensorView& view, const Sizes& n, std::int64_t sequence, std::int64_t head) {
  State out{Row(n.D * n.Dv, 0.0), std::vector<ColumnError>(n.Dv)};
  if (!view.present()) return out;
  for (std::int64_t d = 0; d < n.D; ++d) {
    for (std::int64_t j = 0; j < n.Dv; ++j) {
      const double x = load(view, sequence, head, d, j);
      out.s[d * n.Dv + j] = x;
      out.errors[j].pass(1.0, x, 0.0);  // allows for kernels that round an f64 state to f32
    }
  }
  return out;
}

/// Returns the Euclidean norms of the columns of diag(factors) · matrix, for a matrix (D,Dv). Scales each column so
/// that the squares neither overflow nor underflow.
Row column_norms(const Row& matrix, const Row& factors, std::int64_t Dv) {
  Row largest(Dv, 0.0), norms(Dv, 0.0);
  const auto for_each = [&](const auto& visit) {
    for (std::size_t d = 0; d < factors.size(); ++d) {
      const double* row = matrix.data() + d * Dv;
      for (std::int64_t j = 0; j < Dv; ++j) visit(j, row[j] * factors[d]);
    }
  };
  for_each([&](std::int64_t j, double x) { largest[j] = std::max(largest[j], std::abs(x)); });
  Row scales = largest;
  for (double& x : scales) x = 1.0 / std::max(x, 0x1p-1000);
  for_each([&](std::int64_t j, double x) { norms[j] += x * scales[j] * (x * scales[j]); });
  for (std::int64_t j = 0; j < Dv; ++j) norms[j] = std::sqrt(norms[j]) / scales[j];
  return norms;
}

/// Multiplies row d of (D,Dv) by factors[d].
void scale_rows(Row& matrix, const Row& factors, std::int64_t Dv) {
  for (std::size_t d = 0; d < factors.size(); ++d) {
    for (std::int64_t j = 0; j < Dv; ++j) matrix[d * Dv + j] *= factors[d];
  }
}

/// Holds xᵀm for a vector x and a matrix m: Σ_d x_d m_dj for each column j. `absolute` holds Σ_d |x_d m_dj|.
struct Product {
  Row value, absolute;
};

Product transposed_product(const Row& matrix, const Row& x, std::int64_t Dv) {
  Product out{Row(Dv, 0.0), Row(Dv, 0.0)};
  for (std::size_t d = 0; d < x.size(); ++d) {
    const double* row = matrix.data() + d * Dv;
    for (std::int64_t j = 0; j < Dv; ++j) {
      out.value[j] += row[j] * x[d];
      out.absolute[j] += std::abs(row[j]) * std::abs(x[d]);
    }
  }
  return out;
}

/// The inputs of one token, and bounds that do not depend on the state.
struct Token {
  Row k, v;
  double k_factor, k_norm;
  double beta;
  Row decay;       // (D) e^g
  Row drift;       // (D) magnitude (error bound) of e^g
  double largest;  // max e^g
  double mapped;   // bound on the norm of I − β k kᵀ; 1 without the delta rule
};

Token load_token(const LinearAttentionInputs& in, const LinearAttentionOptions& options, const Sizes& n, std::int64_t b,
                 std::int64_t state_head, std::int64_t i) {
  const UnitRow key = load_unit_row(in.k, options, b, n.key_of(state_head), i);
  Token out{key.x, load_row(in.v, b, state_head, i), key.factor, norm(key.x), 1.0, Row(n.D, 1.0), Row(n.D, 0.0), 1.0,
            1.0};
  if (in.beta.present()) out.beta = load(in.beta, b, in.beta.shape[1] == 1 ? 0 : state_head, i, 0);
  if (n.gated) {
    for (std::int64_t d = 0; d < n.D; ++d) {
      const double g = load(in.decay, b, state_head, i, in.decay.shape[3] == 1 ? 0 : d);
      const double e = std::exp(g);
      out.decay[d] = e;
      if (n.drifts) out.drift[d] = (e == 0.0 ? 0.0 : e * (3.0 + 2.0 * std::abs(g)) / kLeastConstant) + n.floor;
    }
    out.largest = *std::max_element(out.decay.begin(), out.decay.end());
  }
  if (n.delta) out.mapped = std::max(1.0, std::abs(1.0 - out.beta * out.k_norm * out.k_norm));
  return out;
}

/// The decayed state a = diag(e^g) S, and `rest`, the vector that the token writes to it: v − aᵀk with the delta rule.
struct Read {
  Row a;           // (D,Dv) diag(e^g) S
  Row a_error;     // (Dv) bound on the rounding error of each column of a
  Row a_norm;      // (Dv)
  Row drift;       // (Dv) the part of a_error that comes from rounding e^g
  Row rest;        // (Dv) v − aᵀk for delta rules, otherwise v
  Row rest_terms;  // (Dv) sum of the absolute values of the terms of `rest`
  Row rest_error;  // (Dv) error bound of `rest`: rest_terms, plus the effect of a_error
};

Read read_state(const State& before, const Token& token, const Sizes& n) {
  Read out;
  out.a = before.s;
  scale_rows(out.a, token.decay, n.Dv);
  out.a_norm = column_norms(before.s, token.decay, n.Dv);
  out.drift = column_norms(before.s, token.drift, n.Dv);
  for (std::int64_t j = 0; j < n.Dv; ++j) {
    out.a_error.push_back(token.largest * before.errors[j].bound() + out.drift[j]);
  }
  out.rest = out.rest_terms = out.rest_error = token.v;
  for (Row* terms : {&out.rest_terms, &out.rest_error}) {
    for (double& x : *terms) x = std::abs(x);
  }
  if (!n.delta) return out;
  const Product read = transposed_product(out.a, token.k, n.Dv);
  for (std::int64_t j = 0; j < n.Dv; ++j) {
    out.rest[j] -= read.value[j];
    out.rest_terms[j] += read.absolute[j];
    out.rest_error[j] = out.rest_terms[j] + token.k_norm * out.a_error[j];
  }
  return out;
}

/// Returns the new state S = a + β k restᵀ.
State write_state(const Read& read, const State& before, const Token& token, const Sizes& n) {
  State out{read.a, before.errors};
  for (std::int64_t d = 0; d < n.D; ++d) {
    for (std::int64_t j = 0; j < n.Dv; ++j) out.s[d * n.Dv + j] += token.k[d] * token.beta * read.rest[j];
  }
  const double growth = token.largest * token.mapped;
  for (std::int64_t j = 0; j < n.Dv; ++j) {
    const double own = read.a_norm[j] + token.k_norm * std::abs(token.beta) * read.rest_terms[j];
    out.errors[j].pass(growth, own, token.mapped * read.drift[j]);
  }
  return out;
}

/// All states of one head over one sequence: before the first token and after each token.
struct Trajectory {
  std::vector<Token> tokens;  // (T)
  std::vector<State> states;  // (T+1)

  Trajectory(const LinearAttentionInputs& in, const LinearAttentionOptions& options, const Sizes& n,
             const Sequence& sequence, std::int64_t head) {
    states.push_back(load_state(in.state, n, sequence.n, head));
    for (std::int64_t t = 0; t < sequence.T; ++t) {
      tokens.push_back(load_token(in, options, n, sequence.b, head, sequence.first + t));
      const Read read = read_state(states.back(), tokens.back(), n);
      states.push_back(write_state(read, states.back(), tokens.back(), n));
    }
  }
};

/// Returns the address of row i of one head in an array (heads,T,width).
double* row_of(std::vector<double>& array, std::int64_t head, std::int64_t T, std::int64_t i, std::int64_t width) {
  return array.data() + (head * T + i) * width;
}

class ForwardPass {
 public:
  ForwardPass(LinearForward& out, const LinearAttentionInputs& in, const LinearAttentionOptions& options)
      : out_(out), in_(in), options_(options), n_(in, options), native16_(options.precision == Precision::native16) {
    std::vector<LinearForwardArrays*> all{&out, &out.magnitude};
    if (native16_) all.push_back(&out.rounded);
    for (LinearForwardArrays* arrays : all) {
      arrays->y.assign(n_.B * n_.Ho * n_.T * n_.Dv, 0.0);
      arrays->state.assign(linear_sequences(in) * n_.Hv * n_.D * n_.Dv, 0.0);
      arrays->snapshots.assign(arrays->state.size() * snapshots(), 0.0);
    }
  }

  void run() {
    for (const Sequence& sequence : sequences_of(in_)) {
      for (std::int64_t h = 0; h < n_.Hv; ++h) {
        const Trajectory path(in_, options_, n_, sequence, h);
        for (std::int64_t r = 0; r < n_.readers(); ++r) {
          for (std::int64_t t = 0; t < sequence.T; ++t)
            put_output(path.states[t + 1], sequence, h * n_.readers() + r, t);
        }
        put_state(&LinearForwardArrays::state, path.states.back(), sequence.n * n_.Hv + h);
        for (std::int64_t m = 0; m < snapshots(); ++m) {
          put_state(&LinearForwardArrays::snapshots, path.states[snapshot_length(in_.snapshot_lengths, sequence.n, m)],
                    (sequence.n * snapshots() + m) * n_.Hv + h);
        }
      }
    }
  }

 private:
  void put_output(const State& state, const Sequence& sequence, std::int64_t head, std::int64_t t) {
    const std::int64_t i = sequence.first + t;
    const Row q = load_unit_row(in_.q, options_, sequence.b, n_.query_of(head), i).x;
    const double q_norm = norm(q);
    const Product read = transposed_product(state.s, q, n_.Dv);
    double* y = row_of(out_.y, sequence.b * n_.Ho + head, n_.T, i, n_.Dv);
    double* magnitude = row_of(out_.magnitude.y, sequence.b * n_.Ho + head, n_.T, i, n_.Dv);
    for (std::int64_t j = 0; j < n_.Dv; ++j) {
      y[j] = n_.scale * read.value[j];
      magnitude[j] = std::abs(n_.scale) * (read.absolute[j] + q_norm * state.errors[j].bound());
    }
    if (!native16_) return;
    double* rounded = row_of(out_.rounded.y, sequence.b * n_.Ho + head, n_.T, i, n_.Dv);
    for (std::int64_t j = 0; j < n_.Dv; ++j) {
      double terms = q_norm * (state.errors[j].walk + kFlushed);
      for (std::int64_t d = 0; d < n_.D; ++d) {
        terms += (std::abs(q[d]) + kFlushed) * (std::abs(state.s[d * n_.Dv + j]) + kFlushed);
      }
      rounded[j] = kRoundedFactors * std::abs(n_.scale) * terms;
    }
  }

  std::int64_t snapshots() const { return snapshots_of(in_.snapshot_lengths); }

  void put_state(std::vector<double> LinearForwardArrays::*array, const State& state, std::int64_t at) {
    for (std::int64_t x = 0; x < n_.D * n_.Dv; ++x) {
      (out_.*array)[at * n_.D * n_.Dv + x] = state.s[x];
      (out_.magnitude.*array)[at * n_.D * n_.Dv + x] = std::abs(state.s[x]) + state.errors[x % n_.Dv].bound();
      if (native16_)
        (out_.rounded.*array)[at * n_.D * n_.Dv + x] = kRoundedFactors * (state.errors[x % n_.Dv].walk + kFlushed);
    }
  }

  LinearForward& out_;
  const LinearAttentionInputs& in_;
  const LinearAttentionOptions& options_;
  const Sizes n_;
  const bool native16_;
};

/// A vector that is added to one row of a gradient, with the magnitudes (error bounds) of its elements.
struct Term {
  Row value, magnitude;
  explicit Term(std::int64_t size) : value(size, 0.0), magnitude(size, 0.0) {}
  void add(std::int64_t at, double term, double bound) {
    value[at] += term;
    magnitude[at] += bound;
  }
};

/// Returns the product of the matrix m and the vector x: Σ_j m_dj x_j for each d, with magnitudes (error bounds).
/// `errors` bounds the errors of the columns of m, and `x_error` the errors of x.
Term product(const Row& matrix, const Row& errors, const Row& x, const Row& x_error, std::int64_t D) {
  Term out(D);
  const auto Dv = static_cast<std::int64_t>(x.size());
  for (std::int64_t d = 0; d < D; ++d) {
    const double* row = matrix.data() + d * Dv;
    for (std::int64_t j = 0; j < Dv; ++j) {
      out.add(d, row[j] * x[j], (std::abs(row[j]) + errors[j]) * std::abs(x[j]) + std::abs(row[j]) * x_error[j]);
    }
  }
  return out;
}

Row bounds(const std::vector<ColumnError>& errors) {
  Row out;
  for (const ColumnError& error : errors) out.push_back(error.bound());
  return out;
}

class BackwardPass {
 public:
  BackwardPass(LinearBackward& out, const LinearAttentionInputs& in, const LinearAttentionIncoming& incoming,
               const LinearAttentionOptions& options, bool drifts = true)
      : out_(out), in_(in), incoming_(incoming), options_(options), n_(in, options) {
    n_.drifts = drifts;
    const auto numel = [](const ConstTensorView& x) { return x.present() ? x.numel() : 0; };
    for (LinearBackwardArrays* arrays : {static_cast<LinearBackwardArrays*>(&out), &out.magnitude}) {
      arrays->dq.assign(in.q.numel(), 0.0);
      arrays->dk.assign(in.k.numel(), 0.0);
      arrays->dv.assign(in.v.numel(), 0.0);
      arrays->ddecay.assign(numel(in.decay), 0.0);
      arrays->dbeta.assign(numel(in.beta), 0.0);
      arrays->dstate.assign(linear_sequences(in) * n_.Hv * n_.D * n_.Dv, 0.0);
    }
  }

  void run() {
    for (const Sequence& sequence : sequences_of(in_)) {
      for (std::int64_t h = 0; h < n_.Hv; ++h) add_state(sequence, h);
    }
    through_norm(&LinearBackwardArrays::dq, in_.q);
    through_norm(&LinearBackwardArrays::dk, in_.k);
  }

 private:
  /// Backpropagates through the output y of token i. Adds to dq.
  /// Adds the contribution of y to `gradient`. The sum is the whole gradient of the state after the token.
  void add_outputs(State& gradient, const State& after, std::int64_t b, std::int64_t head, std::int64_t i) {
    Row own = column_norms(gradient.s, Row(n_.D, 1.0), n_.Dv);
    const Row after_errors = bounds(after.errors);
    for (std::int64_t r = 0; r < n_.readers(); ++r) {
      const std::int64_t y_head = head * n_.readers() + r;
      const Row q = load_unit_row(in_.q, options_, b, n_.query_of(y_head), i).x;
      Row dy = load_row(incoming_.dy, b, y_head, i);
      for (double& x : dy) x *= n_.scale;
      const double q_norm = norm(q);
      for (std::int64_t d = 0; d < n_.D; ++d) {
        for (std::int64_t j = 0; j < n_.Dv; ++j) gradient.s[d * n_.Dv + j] += q[d] * dy[j];
      }
      for (std::int64_t j = 0; j < n_.Dv; ++j) own[j] += q_norm * std::abs(dy[j]);
      const Term dq = product(after.s, after_errors, dy, Row(n_.Dv, 0.0), n_.D);
      add_row(&LinearBackwardArrays::dq, dq, b * n_.Hq + n_.query_of(y_head), i);
    }
    for (std::int64_t j = 0; j < n_.Dv; ++j) gradient.errors[j].pass(1.0, own[j], 0.0);
  }

  /// Backpropagates through a token's update of the state: `gradient` is the gradient of the state after the token.
  /// Returns the gradient of the state before the token. Adds to dk, dv, dbeta and ddecay.
  State through_token(State gradient, const Token& token, const Read& read, std::int64_t b, std::int64_t head,
                      std::int64_t i) {
    const Row errors = bounds(gradient.errors);
    const Product d_rest = transposed_product(gradient.s, token.k, n_.Dv);  // gradient of `rest`, before its factor β
    Row d_rest_error = d_rest.absolute;
    for (std::int64_t j = 0; j < n_.Dv; ++j) d_rest_error[j] += token.k_norm * errors[j];
    add_value_and_beta(token, read, d_rest.value, d_rest_error, b, head, i);

    const auto scaled = [&token](Row x, double by) {
      for (double& each : x) each *= by * token.beta;
      return x;
    };
    const double sign = token.beta < 0 ? -1.0 : 1.0;
    Term dk = product(gradient.s, errors, scaled(read.rest, 1.0), scaled(read.rest_error, sign), n_.D);
    Row own = column_norms(gradient.s, Row(n_.D, 1.0), n_.Dv);
    if (n_.delta) {
      const Row d_read = scaled(d_rest.value, -1.0);
      const Term dk_read = product(read.a, read.a_error, d_read, scaled(d_rest_error, sign), n_.D);
      for (std::int64_t d = 0; d < n_.D; ++d) dk.add(d, dk_read.value[d], dk_read.magnitude[d]);
      for (std::int64_t d = 0; d < n_.D; ++d) {
        for (std::int64_t j = 0; j < n_.Dv; ++j) gradient.s[d * n_.Dv + j] += token.k[d] * d_read[j];
      }
      for (std::int64_t j = 0; j < n_.Dv; ++j) own[j] += token.k_norm * std::abs(token.beta) * d_rest.absolute[j];
    }
    add_row(&LinearBackwardArrays::dk, dk, b * n_.Hk + n_.key_of(head), i);
    add_decay(gradient, own, token, read, b * n_.Hv + head, i);
    return before_decay(std::move(gradient), own, token);
  }

  /// Computes dS = diag(e^g) dA, the gradient of the state before its decay, from dA, the gradient after the decay.
  /// `own` bounds the rounding errors that this token adds to the columns of dA.
  State before_decay(State gradient, const Row& own, const Token& token) const {
    const Row drift = column_norms(gradient.s, token.drift, n_.Dv);
    scale_rows(gradient.s, token.decay, n_.Dv);
    const double growth = token.largest * token.mapped;
    for (std::int64_t j = 0; j < n_.Dv; ++j) {
      gradient.errors[j].pass(growth, token.largest * own[j], drift[j]);
    }
    return gradient;
  }

  void add_value_and_beta(const Token& token, const Read& read, const Row& d_rest, const Row& d_rest_error,
                          std::int64_t b, std::int64_t head, std::int64_t i) {
    Term dv(n_.Dv), dbeta(1);
    for (std::int64_t j = 0; j < n_.Dv; ++j) {
      dv.add(j, token.beta * d_rest[j], std::abs(token.beta) * d_rest_error[j]);
      dbeta.add(0, d_rest[j] * read.rest[j],
                d_rest_error[j] * std::abs(read.rest[j]) + std::abs(d_rest[j]) * read.rest_error[j]);
    }
    add_row(&LinearBackwardArrays::dv, dv, b * n_.Hv + head, i);
    if (!in_.beta.present()) return;
    const std::int64_t heads = in_.beta.shape[1];
    add_row(&LinearBackwardArrays::dbeta, dbeta, b * heads + (heads == 1 ? 0 : head), i);
  }

  void add_state(const Sequence& sequence, std::int64_t head) {
    const Trajectory path(in_, options_, n_, sequence, head);
    State gradient = load_state(incoming_.dstate, n_, sequence.n, head);
    for (std::int64_t t = sequence.T - 1; t >= 0; --t) {
      const std::int64_t i = sequence.first + t;
      add_outputs(gradient, path.states[t + 1], sequence.b, head, i);
      const Read read = read_state(path.states[t], path.tokens[t], n_);
      gradient = through_token(std::move(gradient), path.tokens[t], read, sequence.b, head, i);
    }
    put_state_gradient(gradient, sequence.n * n_.Hv + head);
  }

  /// Adds the gradient of the log-decay g: a ∘ dA, summed over the features of v.
  /// Here a = diag(e^g) S is the decayed state, and dA is the gradient of a.
  /// `own` bounds the rounding errors that this token adds to the columns of dA.
  void add_decay(const State& gradient, const Row& own, const Token& token, const Read& read, std::int64_t head,
                 std::int64_t i) {
    if (!n_.gated) return;
    Row errors;
    for (std::int64_t j = 0; j < n_.Dv; ++j) errors.push_back(token.mapped * gradient.errors[j].bound() + own[j]);
    const std::int64_t width = in_.decay.shape[3];
    Term ddecay(width);
    for (std::int64_t d = 0; d < n_.D; ++d) {
      for (std::int64_t j = 0; j < n_.Dv; ++j) {
        const double a = read.a[d * n_.Dv + j], da = gradient.s[d * n_.Dv + j];
        ddecay.add(width == 1 ? 0 : d, a * da,
                   (std::abs(a) + read.a_error[j]) * std::abs(da) + std::abs(a) * errors[j]);
      }
    }
    add_row(&LinearBackwardArrays::ddecay, ddecay, head, i);
  }

  void put_state_gradient(const State& gradient, std::int64_t at) {
    for (std::int64_t x = 0; x < n_.D * n_.Dv; ++x) {
      out_.dstate[at * n_.D * n_.Dv + x] = gradient.s[x];
      out_.magnitude.dstate[at * n_.D * n_.Dv + x] = std::abs(gradient.s[x]) + gradient.errors[x % n_.Dv].bound();
    }
  }

  void add_row(std::vector<double> LinearBackwardArrays::*which, const Term& term, std::int64_t head, std::int64_t i) {
    const auto width = static_cast<std::int64_t>(term.value.size());
    double* value = row_of(out_.*which, head, n_.T, i, width);
    double* magnitude = row_of(out_.magnitude.*which, head, n_.T, i, width);
    for (std::int64_t x = 0; x < width; ++x) {
      value[x] += term.value[x];
      magnitude[x] += term.magnitude[x];
    }
  }

  /// Backpropagates through l2_norm: dx = r (dx̂ − x̂ (x̂·dx̂)), where x̂ = r x and r = 1/√(Σ x² + eps). This is exact
  /// for any eps.
  void through_norm(std::vector<double> LinearBackwardArrays::*which, const ConstTensorView& input) {
    if (!options_.l2_norm) return;
    const Shape& shape = input.shape;
    for (std::int64_t head = 0; head < shape[0] * shape[1]; ++head) {
      for (std::int64_t i = 0; i < n_.T; ++i) {
        const UnitRow unit = load_unit_row(input, options_, head / shape[1], head % shape[1], i);
        double* value = row_of(out_.*which, head, n_.T, i, n_.D);
        double* magnitude = row_of(out_.magnitude.*which, head, n_.T, i, n_.D);
        double along = 0.0, along_magnitude = 0.0;
        for (std::int64_t d = 0; d < n_.D; ++d) {
          along += unit.x[d] * value[d];
          along_magnitude += std::abs(unit.x[d]) * magnitude[d];
        }
        for (std::int64_t d = 0; d < n_.D; ++d) {
          value[d] = unit.factor * (value[d] - unit.x[d] * along);
          magnitude[d] = unit.factor * (magnitude[d] + std::abs(unit.x[d]) * along_magnitude);
        }
      }
    }
  }

  LinearBackward& out_;
  const LinearAttentionInputs& in_;
  const LinearAttentionIncoming& incoming_;
  const LinearAttentionOptions& options_;
  Sizes n_;
};

}  // namespace

LinearForward linear_forward(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options) {
  LinearForward out;
  ForwardPass(out, inputs, options).run();
  return out;
}

LinearBackward linear_backward(const LinearAttentionInputs& inputs, const LinearAttentionIncoming& incoming,
                               const LinearAttentionOptions& options) {
  LinearBackward out;
  BackwardPass(out, inputs, incoming, options).run();
  if (options.precision != Precision::native16) return out;
  LinearBackward without_drift;
  BackwardPass(without_drift, inputs, incoming, options, false).run();
  out.rounded = std::move(without_drift.magnitude);
  for (std::vector<double>* bounds : {&out.rounded.dq, &out.rounded.dk, &out.rounded.dv, &out.rounded.ddecay,
                                      &out.rounded.dbeta, &out.rounded.dstate}) {
    for (double& bound : *bounds) bound = kRoundedFactors * (bound + kFlushed);
  }
  return out;
}

}  // namespace headgate::reference
