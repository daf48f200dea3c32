// SPDX-License-Identifier: Apache-2.0
#include "tool/explain/solution.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "headgate/attention.hpp"
#include "library/core/check.hpp"
#include "verify/oracle/oracle.hpp"

namespace headgate::explain {
namespace {

Matrix zeros(std::int64_t rows, std::int64_t cols) { return {rows, cols, std::vector<double>(rows * cols)}; }

/// Returns the matrix product a·b. Only the projections use this function; the oracle computes attention.
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c = zeros(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.cols; ++k) {
      for (std::int64_t j = 0; j < b.cols; ++j) c(i, j) += a(i, k) * b(k, j);
    }
  }
  return c;
}

void require_finite(const Matrix& m, const char* name) {
  const bool finite = std::all_of(m.values.begin(), m.values.end(), [](double x) { return std::isfinite(x); });
  require(finite, "{} overflows: the problem's numbers are too large", name);
}

/// Returns a view (1,heads,rows,cols / heads) of a matrix whose columns hold its heads side by side.
ConstTensorView heads_view(const Matrix& m, std::int64_t heads) {
  const std::int64_t dim = m.cols / heads;
  return make_view(m.values.data(), {1, heads, m.rows, dim}, {m.rows * m.cols, dim, m.cols, 1});
}

/// Returns a matrix whose columns hold the heads side by side, made from `values` of shape (heads,rows,dim).
Matrix side_by_side(const std::vector<double>& values, std::int64_t heads, std::int64_t rows, std::int64_t dim) {
  Matrix m = zeros(rows, heads * dim);
  std::size_t at = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t d = 0; d < dim; ++d) m(i, h * dim + d) = values[at++];
    }
  }
  return m;
}

/// Computes the scores and scaled scores of query head h and appends them to `s`.
void solve_scores(const WorkedProblem& problem, Solution& s, std::int64_t h) {
  const std::int64_t T = s.Q.rows;
  const std::int64_t S = s.K.rows;
  const std::int64_t D = s.head_dim;
  const std::int64_t kv_head = h / (problem.heads / problem.kv_heads);
  const double root = std::sqrt(static_cast<double>(D));
  Matrix scores = zeros(T, S);
  Matrix scaled = zeros(T, S);
  for (std::int64_t i = 0; i < T; ++i) {
    for (std::int64_t j = 0; j < S; ++j) {
      for (std::int64_t d = 0; d < D; ++d) scores(i, j) += s.Q(i, h * D + d) * s.K(j, kv_head * D + d);
      const bool hidden = problem.causal && j > i + S - T;
      scaled(i, j) = hidden ? -std::numeric_limits<double>::infinity() : scores(i, j) / root;
    }
  }
  require_finite(scores, "scores");
  s.scores.push_back(std::move(scores));
  s.scaled_scores.push_back(std::move(scaled));
}

void solve_projections(const WorkedProblem& problem, Solution& s) {
  s.Q = problem.X ? product(*problem.X, *problem.W_q) : *problem.Q;
  s.K = problem.X ? product(*problem.X, *problem.W_k) : *problem.K;
  s.V = problem.X ? product(*problem.X, *problem.W_v) : *problem.V;
  require_finite(s.Q, "Q");
  require_finite(s.K, "K");
  require_finite(s.V, "V");
  if (problem.W_g) s.gate_logits = product(*problem.X, *problem.W_g);
  if (problem.Z) s.gate_logits = *problem.Z;
  if (!s.gate_logits) return;
  require_finite(*s.gate_logits, "Z");
  s.gate = *s.gate_logits;
  for (double& z : s.gate->values) z = reference::gate_value(problem.gate_fn, z).value;
}

}  // namespace

Solution solve(const WorkedProblem& problem) {
  Solution s;
  solve_projections(problem, s);
  const std::int64_t T = s.Q.rows;
  const std::int64_t S = s.K.rows;
  const std::int64_t Dv = s.V.cols / problem.kv_heads;
  s.head_dim = s.Q.cols / problem.heads;
  for (std::int64_t h = 0; h < problem.heads; ++h) solve_scores(problem, s, h);

  AttentionInputs inputs;
  inputs.q = heads_view(s.Q, problem.heads);
  inputs.k = heads_view(s.K, problem.kv_heads);
  inputs.v = heads_view(s.V, problem.kv_heads);
  if (s.gate_logits) inputs.gate = heads_view(*s.gate_logits, problem.heads);
  AttentionOptions options;
  options.causality = problem.causal ? Causality::causal : Causality::none;
  options.gate_fn = problem.gate_fn;
  const reference::Forward forward = reference::forward(inputs, options);

  auto row = forward.weights.begin();
  for (std::int64_t h = 0; h < problem.heads; ++h, row += T * S) s.weights.push_back({T, S, {row, row + T * S}});
  s.attention = side_by_side(forward.attn, problem.heads, T, Dv);
  s.gated = side_by_side(forward.y, problem.heads, T, Dv);
  require_finite(s.attention, "attention");
  require_finite(s.gated, "output");
  if (problem.W_o) {
    s.projected = product(s.gated, *problem.W_o);
    require_finite(*s.projected, "output");
  }
  return s;
}

}  // namespace headgate::explain
