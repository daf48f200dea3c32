// SPDX-License-Identifier: Apache-2.0
// The oracle of linear attention: its outputs against dense matrices and against the attention that a state hides, its
// gradients against central differences of its own outputs, all in f64.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "verify/oracle/linear_attention.hpp"
#include "verify/oracle/linear_problem.hpp"

namespace headgate {
namespace {

using Matrix = std::vector<std::vector<double>>;

Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<double>(b[0].size(), 0.0));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b[0].size(); ++j) {
      for (std::size_t x = 0; x < b.size(); ++x) out[i][j] += a[i][x] * b[x][j];
    }
  }
  return out;
}

/// What a problem says of head h of the state and token t: k as a column, v as a row, e^g, β and whether β applies.
struct DenseToken {
  Matrix k, v;
  std::vector<double> e;
  double beta = 1.0;
  bool delta = false;
};

DenseToken token_of(PlainLinearProblem& p, std::int64_t b, std::int64_t h, std::int64_t t) {
  DenseToken out;
  out.delta = p.options.rule == LinearRule::delta || p.options.rule == LinearRule::gated_delta;
  for (std::int64_t d = 0; d < p.D; ++d) {
    out.k.push_back({p.k.at(b, h / (p.Hv / p.Hk), t, d)});
    out.e.push_back(p.decay_width == 0 ? 1.0 : std::exp(p.decay.at(b, h, t, p.decay_width == 1 ? 0 : d)));
  }
  out.v.emplace_back();
  for (std::int64_t j = 0; j < p.Dv; ++j) out.v[0].push_back(p.v.at(b, h, t, j));
  if (p.beta_heads > 0) out.beta = p.beta.at(b, p.beta_heads == 1 ? 0 : h, t, 0);
  return out;
}

/// The matrix by which a token maps the state: (I − β k kᵀ) diag(e^g), or diag(e^g).
Matrix map_of(const DenseToken& token) {
  Matrix out(token.e.size(), std::vector<double>(token.e.size(), 0.0));
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::size_t j = 0; j < out.size(); ++j) {
      const double removed = token.delta ? token.beta * token.k[i][0] * token.k[j][0] : 0.0;
      out[i][j] = ((i == j ? 1.0 : 0.0) - removed) * token.e[j];
    }
  }
  return out;
}

/// S_t of one head as a sum over tokens: the maps of the later ones, multiplied out, times β k vᵀ.
Matrix dense_state(PlainLinearProblem& p, std::int64_t b, std::int64_t h, std::int64_t t) {
  Matrix sum(p.D, std::vector<double>(p.Dv, 0.0));
  const auto add = [&sum](const Matrix& term, double factor) {
    for (std::size_t d = 0; d < sum.size(); ++d) {
      for (std::size_t j = 0; j < sum[d].size(); ++j) sum[d][j] += factor * term[d][j];
    }
  };
  Matrix later(p.D, std::vector<double>(p.D, 0.0));
  for (std::int64_t d = 0; d < p.D; ++d) later[d][d] = 1.0;
  for (std::int64_t s = t; s >= 0; --s) {
    const DenseToken token = token_of(p, b, h, s);
    add(multiply(later, multiply(token.k, token.v)), token.beta);
    later = multiply(later, map_of(token));
  }
  if (!p.has_state) return sum;
  Matrix first(p.D, std::vector<double>(p.Dv));
  for (std::int64_t d = 0; d < p.D; ++d) {
    for (std::int64_t j = 0; j < p.Dv; ++j) first[d][j] = p.state.at(b, h, d, j);
  }
  add(multiply(later, first), 1.0);
  return sum;
}

double scale_of(const PlainLinearProblem& p) {
  return p.options.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.D)));
}

/// Three dozen roundings of f64, of numbers of a few units.
constexpr double kDenseRoundings = 1e-14;

void expect_dense(PlainLinearProblem& p) {
  const reference::LinearForward out = reference::linear_forward(p.inputs(), p.options);
  std::size_t at = 0, at_state = 0;
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t head = 0; head < p.Ho(); ++head) {
      for (std::int64_t t = 0; t < p.T; ++t) {
        const Matrix state = dense_state(p, b, head / (p.Ho() / p.Hv), t);
        for (std::int64_t j = 0; j < p.Dv; ++j, ++at) {
          double y = 0.0;
          for (std::int64_t d = 0; d < p.D; ++d) {
            y += scale_of(p) * state[d][j] * p.q.at(b, head / (p.Ho() / p.Hq), t, d);
          }
          EXPECT_NEAR(out.y[at], y, kDenseRoundings) << "y[" << b << "," << head << "," << t << "," << j << "]";
        }
      }
    }
    for (std::int64_t h = 0; h < p.Hv; ++h) {
      for (const std::vector<double>& row : dense_state(p, b, h, p.T - 1)) {
        for (const double x : row) EXPECT_NEAR(out.state[at_state++], x, kDenseRoundings) << "state of head " << h;
      }
    }
  }
  EXPECT_EQ(at, out.y.size());
  EXPECT_EQ(at_state, out.state.size());
}

TEST(LinearOracle, Output_EveryRule_IsThatOfDenseMatrices) {
  for (PlainLinearProblem& problem : problems_of_every_rule()) expect_dense(problem.fill(3));
}

TEST(LinearOracle, Output_HeadsThatShare_IsThatOfDenseMatrices) {
  struct Heads {
    std::int64_t q, k, v;
  };
  for (const Heads& heads : {Heads{4, 2, 2}, Heads{6, 1, 2}, Heads{1, 1, 4}, Heads{2, 1, 4}, Heads{2, 4, 4}}) {
    PlainLinearProblem problem;
    problem.B = 2;
    problem.Hq = heads.q;
    problem.Hk = heads.k;
    problem.Hv = heads.v;
    problem.decay_width = problem.beta_heads = 1;
    problem.options.scale = -0.7;
    expect_dense(problem.fill(5));
  }
}

TEST(LinearOracle, Output_OneTokenByHand_IsRead) {
  PlainLinearProblem p;
  p.T = p.D = p.Dv = 1;
  p.decay_width = p.beta_heads = 1;
  p.has_state = true;
  p.options.scale = 10.0;
  p.fill(1);
  p.q.data = {3.0};
  p.k.data = {0.5};
  p.v.data = {7.0};
  p.decay.data = {std::log(0.25)};
  p.beta.data = {2.0};
  p.state.data = {8.0};
  const reference::LinearForward out = reference::linear_forward(p.inputs(), p.options);
  EXPECT_NEAR(out.state[0], 2.0 + 2.0 * 0.5 * (7.0 - 0.5 * 2.0), kDenseRoundings);  // 8 decays to 2
  EXPECT_NEAR(out.y[0], 10.0 * 3.0 * 8.0, 100 * kDenseRoundings);
}

/// y_t = Σ_j a_tj v_j: x = scale · q_t, and for j = t, t−1, …: a_tj = β_j (k_j·x); x ← e^{g_j} (x − β_j k_j (k_j·x)).
TEST(LinearOracle, Output_AnyRule_IsAttentionWithSignedWeights) {
  for (PlainLinearProblem& p : problems_of_every_rule()) {
    p.has_state = false;
    p.T = 9;
    p.fill(11);
    const reference::LinearForward out = reference::linear_forward(p.inputs(), p.options);
    for (std::int64_t h = 0; h < p.Hv; ++h) {
      for (std::int64_t t = 0; t < p.T; ++t) {
        std::vector<double> x, y(p.Dv, 0.0);
        for (std::int64_t d = 0; d < p.D; ++d) x.push_back(scale_of(p) * p.q.at(0, h, t, d));
        for (std::int64_t j = t; j >= 0; --j) {
          const DenseToken token = token_of(p, 0, h, j);
          double match = 0.0;
          for (std::int64_t d = 0; d < p.D; ++d) match += token.k[d][0] * x[d];
          for (std::int64_t e = 0; e < p.Dv; ++e) y[e] += token.beta * match * token.v[0][e];
          for (std::int64_t d = 0; d < p.D; ++d) {
            x[d] = token.e[d] * (x[d] - (token.delta ? token.beta * match * token.k[d][0] : 0.0));
          }
        }
        for (std::int64_t e = 0; e < p.Dv; ++e) EXPECT_NEAR(out.y[(h * p.T + t) * p.Dv + e], y[e], kDenseRoundings);
      }
    }
  }
}

TEST(LinearOracle, L2Norm_AnyRows_EqualsNormalisedRows) {
  PlainLinearProblem p;
  p.decay_width = p.beta_heads = 1;
  p.options.l2_norm = 0.01;
  p.fill(4);
  const std::vector<double> y = reference::linear_forward(p.inputs(), p.options).y;
  for (PlainTensor* x : {&p.q, &p.k}) {
    for (std::int64_t t = 0; t < p.T; ++t) {
      double sum = 0.01;
      for (std::int64_t d = 0; d < p.D; ++d) sum += x->at(0, 0, t, d) * x->at(0, 0, t, d);
      for (std::int64_t d = 0; d < p.D; ++d) x->at(0, 0, t, d) /= std::sqrt(sum);
    }
  }
  p.options.l2_norm.reset();
  const std::vector<double> expected = reference::linear_forward(p.inputs(), p.options).y;
  for (std::size_t n = 0; n < y.size(); ++n) EXPECT_NEAR(y[n], expected[n], kDenseRoundings);
}

TEST(LinearOracle, L2Norm_ZeroRowWithoutEps_StaysZeroWithItsGradients) {
  PlainLinearProblem p;
  p.decay_width = p.beta_heads = 1;
  p.options.l2_norm = 0.0;
  p.fill(4);
  for (std::int64_t d = 0; d < p.D; ++d) p.q.at(0, 0, 1, d) = p.k.at(0, 0, 2, d) = 0.0;
  const reference::LinearForward out = reference::linear_forward(p.inputs(), p.options);
  const reference::LinearBackward gradients = reference::linear_backward(p.inputs(), p.incoming(), p.options);
  EXPECT_EQ(out.y[1 * p.Dv], 0.0);
  for (std::int64_t d = 0; d < p.D; ++d) {
    EXPECT_EQ(gradients.dq[1 * p.D + d], 0.0);
    EXPECT_EQ(gradients.dk[2 * p.D + d], 0.0);
  }
  for (const double x : gradients.dk) EXPECT_TRUE(std::isfinite(x));
}

TEST(LinearOracle, Decay_MinusInfinity_ForgetsTheState) {
  PlainLinearProblem p;
  p.decay_width = p.beta_heads = 1;
  p.has_state = true;
  p.fill(6);
  p.decay.at(0, 0, 2, 0) = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < p.Dv; ++j) p.dy.at(0, 0, 0, j) = p.dy.at(0, 0, 1, j) = 0.0;
  const reference::LinearForward out = reference::linear_forward(p.inputs(), p.options);
  const reference::LinearBackward gradients = reference::linear_backward(p.inputs(), p.incoming(), p.options);
  PlainLinearProblem rest = p;
  rest.has_state = false;
  rest.state = {};
  for (std::int64_t d = 0; d < p.D; ++d) rest.k.at(0, 0, 0, d) = rest.k.at(0, 0, 1, d) = 0.0;
  const reference::LinearForward alone = reference::linear_forward(rest.inputs(), rest.options);
  EXPECT_EQ(out.state, alone.state);
  EXPECT_EQ(gradients.ddecay[2], 0.0);
  for (const double x : gradients.dstate) EXPECT_EQ(x, 0.0);
  for (const double m : gradients.magnitude.ddecay) EXPECT_TRUE(std::isfinite(m));
}

TEST(LinearOracle, PackedBatch_AnySequences_EqualSeparateCalls) {
  PlainLinearProblem packed;
  packed.cu_seqlens = {0, 3, 3, 8, 9};
  packed.T = 9;
  packed.decay_width = packed.beta_heads = 1;
  packed.has_state = packed.has_dstate = true;
  packed.fill(8);
  const reference::LinearForward out = reference::linear_forward(packed.inputs(), packed.options);
  const reference::LinearBackward gradients =
      reference::linear_backward(packed.inputs(), packed.incoming(), packed.options);
  const std::int64_t states = packed.D * packed.Dv;
  for (std::int64_t n = 0; n < packed.N(); ++n) {
    const std::int64_t first = packed.cu_seqlens[n], last = packed.cu_seqlens[n + 1];
    PlainLinearProblem one = packed;
    one.cu_seqlens.clear();
    const auto cut = [first, last](PlainTensor& x) {
      const std::int64_t width = x.shape[3];
      x.data = {x.data.begin() + first * width, x.data.begin() + last * width};
      x.shape[2] = last - first;
    };
    for (PlainTensor* x : {&one.q, &one.k, &one.v, &one.decay, &one.beta, &one.dy}) cut(*x);
    for (PlainTensor* x : {&one.state, &one.dstate}) {
      x->data = {x->data.begin() + n * states, x->data.begin() + (n + 1) * states};
      x->shape[0] = 1;
    }
    LinearAttentionInputs in = one.inputs();
    LinearAttentionIncoming incoming = one.incoming();
    if (first == last) {  // views of nothing, but there
      for (ConstTensorView* x : {&in.q, &in.k, &in.v, &in.decay, &in.beta, &incoming.dy}) x->dtype = DType::f64;
      for (auto [x, width] : {std::pair{&in.q, one.D},
                              {&in.k, one.D},
                              {&in.v, one.Dv},
                              {&in.decay, std::int64_t{1}},
                              {&in.beta, std::int64_t{1}},
                              {&incoming.dy, one.Dv}}) {
        x->shape = {1, 1, 0, width};
      }
    }
    const reference::LinearForward own = reference::linear_forward(in, one.options);
    const reference::LinearBackward own_gradients = reference::linear_backward(in, incoming, one.options);
    const auto part = [](const std::vector<double>& x, std::int64_t begin, std::int64_t end, std::int64_t width) {
      return std::vector<double>(x.begin() + begin * width, x.begin() + end * width);
    };
    EXPECT_EQ(own.y, part(out.y, first, last, one.Dv));
    EXPECT_EQ(own.state, part(out.state, n, n + 1, states));
    EXPECT_EQ(own_gradients.dk, part(gradients.dk, first, last, one.D));
    EXPECT_EQ(own_gradients.ddecay, part(gradients.ddecay, first, last, 1));
    EXPECT_EQ(own_gradients.magnitude.ddecay, part(gradients.magnitude.ddecay, first, last, 1));
    EXPECT_EQ(own_gradients.dstate, part(gradients.dstate, n, n + 1, states));
  }
}

double largest(const std::vector<double>& x) {
  double out = 0.0;
  for (const double each : x) out = std::max(out, std::abs(each));
  return out;
}

/// A magnitude covers the roundings of its element's terms, and so the element.
void expect_covers(const std::vector<double>& magnitude, const std::vector<double>& values, const std::string& name) {
  ASSERT_EQ(magnitude.size(), values.size()) << name;
  for (std::size_t n = 0; n < values.size(); ++n) {
    EXPECT_TRUE(std::isfinite(magnitude[n])) << name << "[" << n << "]";
    EXPECT_GE(magnitude[n] * (1.0 + 1e-12), std::abs(values[n])) << name << "[" << n << "]";
  }
}

TEST(LinearOracle, Magnitude_EveryRule_CoversItsElement) {
  for (PlainLinearProblem& p : problems_of_every_rule()) {
    p.fill(29);
    const reference::LinearForward out = reference::linear_forward(p.inputs(), p.options);
    const reference::LinearBackward g = reference::linear_backward(p.inputs(), p.incoming(), p.options);
    expect_covers(out.magnitude.y, out.y, "y");
    expect_covers(out.magnitude.state, out.state, "state");
    expect_covers(g.magnitude.dq, g.dq, "dq");
    expect_covers(g.magnitude.dk, g.dk, "dk");
    expect_covers(g.magnitude.dv, g.dv, "dv");
    expect_covers(g.magnitude.ddecay, g.ddecay, "ddecay");
    expect_covers(g.magnitude.dbeta, g.dbeta, "dbeta");
    expect_covers(g.magnitude.dstate, g.dstate, "dstate");
  }
}

/// Sums of absolute values, carried through the recurrence, would grow here by (1 + β) for each of 400 tokens.
TEST(LinearOracle, Magnitude_CorrelatedKeysAndLargeBeta_StaysNearItsElement) {
  PlainLinearProblem p;
  p.T = 400;
  p.D = p.Dv = 8;
  p.beta_heads = 1;
  p.options.rule = LinearRule::delta;
  p.options.l2_norm = 1e-6;
  p.fill(31);
  for (double& x : p.k.data) x += 0.7;
  for (double& x : p.beta.data) x = 1.6 + 0.35 * x;
  const reference::LinearForward out = reference::linear_forward(p.inputs(), p.options);
  const reference::LinearBackward g = reference::linear_backward(p.inputs(), p.incoming(), p.options);
  EXPECT_LT(largest(out.magnitude.y), 1e3 * largest(out.y));
  EXPECT_LT(largest(g.magnitude.dq), 1e3 * largest(g.dq));
  EXPECT_LT(largest(g.magnitude.dk), 2e3 * largest(g.dk));
  EXPECT_LT(largest(g.magnitude.dv), 1e3 * largest(g.dv));
  EXPECT_LT(largest(g.magnitude.dbeta), 2e3 * largest(g.dbeta));
}

/// Σ dy∘y + Σ dstate∘S_T.
double loss(const PlainLinearProblem& p) {
  const reference::LinearForward out = reference::linear_forward(p.inputs(), p.options);
  double sum = 0.0;
  for (std::size_t n = 0; n < out.y.size(); ++n) sum += p.dy.data[n] * out.y[n];
  for (std::size_t n = 0; n < p.dstate.data.size(); ++n) sum += p.dstate.data[n] * out.state[n];
  return sum;
}

/// Central differences of the loss in every element. The step 2^-17 balances truncation, h² f‴ ~ 1e-10, and rounding,
/// u·|loss| / h ~ 1e-11; both stay far below the tolerance.
void expect_gradient(PlainLinearProblem& p, PlainTensor& input, const std::vector<double>& gradient,
                     const std::string& name) {
  constexpr double kStep = 0x1p-17;
  constexpr double kTolerance = 1e-7;
  ASSERT_EQ(gradient.size(), input.data.size()) << name;
  for (std::size_t at = 0; at < gradient.size(); ++at) {
    const double value = input.data[at];
    input.data[at] = value + kStep;
    const double above = loss(p);
    input.data[at] = value - kStep;
    const double below = loss(p);
    input.data[at] = value;
    const double slope = (above - below) / (2 * kStep);
    EXPECT_NEAR(gradient[at], slope, kTolerance * (1.0 + std::abs(slope))) << name << "[" << at << "]";
  }
}

void expect_gradients(PlainLinearProblem& p) {
  SCOPED_TRACE(testing::Message() << "rule " << static_cast<int>(p.options.rule) << ", heads " << p.Hq << " " << p.Hk
                                  << " " << p.Hv << ", decay width " << p.decay_width << ", beta heads "
                                  << p.beta_heads);
  const reference::LinearBackward g = reference::linear_backward(p.inputs(), p.incoming(), p.options);
  expect_gradient(p, p.q, g.dq, "dq");
  expect_gradient(p, p.k, g.dk, "dk");
  expect_gradient(p, p.v, g.dv, "dv");
  expect_gradient(p, p.decay, g.ddecay, "ddecay");
  expect_gradient(p, p.beta, g.dbeta, "dbeta");
  if (p.has_state) expect_gradient(p, p.state, g.dstate, "dstate");
}

TEST(LinearOracle, Gradients_EveryRule_MatchDifferences) {
  for (PlainLinearProblem& problem : problems_of_every_rule()) expect_gradients(problem.fill(13));
}

TEST(LinearOracle, Gradients_HeadsThatShare_MatchDifferences) {
  struct Heads {
    std::int64_t q, k, v, beta;
  };
  for (const Heads& heads :
       {Heads{4, 2, 2, 2}, Heads{3, 1, 1, 1}, Heads{1, 1, 4, 1}, Heads{2, 1, 4, 4}, Heads{2, 4, 4, 1}}) {
    for (const std::int64_t width : {1, 3}) {
      PlainLinearProblem problem;
      problem.B = 2;
      problem.Hq = heads.q;
      problem.Hk = heads.k;
      problem.Hv = heads.v;
      problem.beta_heads = heads.beta;
      problem.decay_width = width;
      problem.options.scale = -0.7;
      expect_gradients(problem.fill(17));
    }
  }
}

TEST(LinearOracle, Gradients_ThroughL2Norm_MatchDifferences) {
  for (const double eps : {0.0, 0.3}) {
    for (PlainLinearProblem& problem : problems_of_every_rule()) {
      problem.options.l2_norm = eps;
      problem.Hq = 4;  // two read a state
      expect_gradients(problem.fill(19));
    }
  }
}

TEST(LinearOracle, Gradients_PackedBatch_MatchDifferences) {
  PlainLinearProblem problem;
  problem.cu_seqlens = {0, 3, 3, 7};
  problem.T = 7;
  problem.decay_width = 3;
  problem.beta_heads = 1;
  problem.has_state = problem.has_dstate = true;
  expect_gradients(problem.fill(23));
}

}  // namespace
}  // namespace headgate
