// SPDX-License-Identifier: Apache-2.0
#include "models/layers/gate_apply.hpp"

#include <iterator>

#include "library/core/gate_functions.hpp"
#include "models/layers/support.hpp"
#include "verify/oracle/gates.hpp"

namespace headgate::layers {
namespace {

GateFn random_function(Random& random) {
  return kGateFunctions[static_cast<std::size_t>(random_int(random, 0, std::ssize(kGateFunctions) - 1))].value;
}

Number function_of(GateFn fn, const Number& z) { return reference::gate_terms(fn, z).value; }

HeadShape random_shape(Random& random) {
  return {random_int(random, 1, 6), random_int(random, 1, 4), random_int(random, 1, 20)};
}

struct GateSample {
  HeadShape shape;
  GateFn fn;
  GateOp op;
  std::int64_t features;  ///< of a head's gate: 1 or D
  std::vector<double> u, z, y, dy;

  explicit GateSample(Random& random)
      : shape(random_shape(random)),
        fn(random_function(random)),
        op(random_int(random, 0, 1) != 0 ? GateOp::mul : GateOp::add),
        features(random_int(random, 0, 1) != 0 ? shape[2] : 1),
        u(random_values(random, count())),
        z(random_values(random, shape[0] * shape[1] * features, 2.0)),
        y(random_values(random, count())),
        dy(random_values(random, count())) {}

  std::int64_t count() const { return shape[0] * shape[1] * shape[2]; }
  /// Of u, y or their gradients.
  template <class Values>
  auto rows(Values& values) const {
    return view_of(values, shape[0], shape[1], shape[2]);
  }
  template <class Values>
  auto logits(Values& values) const {
    return view_of(values, shape[0], shape[1], features);
  }

  std::vector<Number> formula(const std::vector<Number>& of_u, const std::vector<Number>& of_z) const {
    std::vector<Number> out;
    for (std::size_t i = 0; i < of_u.size(); ++i) {
      const std::size_t at = features == 1 ? i / static_cast<std::size_t>(shape[2]) : i;
      const Number g = function_of(fn, of_z[at]);
      out.push_back(op == GateOp::mul ? of_u[i] * g : of_u[i] + g);
    }
    return out;
  }
};

template <typename T>
void check(const GateSample& s) {
  Tape tape;
  const std::vector<Number> of_u = tape.inputs(s.u), of_z = tape.inputs(s.z), expected = s.formula(of_u, of_z);
  tape.differentiate(expected, s.dy);
  const std::vector<T> u = as<T>(s.u), z = as<T>(s.z);
  std::vector<T> y(u.size()), more = as<T>(s.y), du = as<T>(s.dy), dz(z.size());
  const GateRule rule{s.fn, s.op};
  const auto forward = [&](std::vector<T>& out, Update update) {
    gate_apply(s.rows(out), s.rows(u), s.logits(z), rule, update, with_threads());
  };
  forward(y, Update::overwrite);
  expect_within("y", y, expected);
  forward(more, Update::add);
  expect_within("y +=", more, added(s.y, expected));
  gate_apply_backward(s.rows(du), s.logits(dz), s.rows(du), s.rows(u), s.logits(z), rule, with_threads());
  expect_within("du, in place of dy", du, tape.gradients(of_u));
  expect_within("dz", dz, tape.gradients(of_z));
  std::vector<T> g(z.size());
  std::vector<Number> values;
  values.reserve(of_z.size());
  for (const Number& logit : of_z) values.push_back(function_of(s.fn, logit));
  gate_values(s.logits(g), s.logits(z), s.fn, with_threads());
  expect_within("g(z)", g, values);
}

/// Computes one gate for all heads: the mean of theirs.
template <typename T>
void check_shared(const GateSample& s) {
  Tape tape;
  const std::vector<Number> of_z = tape.inputs(s.u);  // (N,H,D)
  const auto width = static_cast<std::size_t>(s.shape[1] * s.shape[2]), D = static_cast<std::size_t>(s.shape[2]);
  std::vector<Number> expected(static_cast<std::size_t>(s.shape[0]) * D);
  for (std::size_t i = 0; i < of_z.size(); ++i) {
    expected[i / width * D + i % D] += function_of(s.fn, of_z[i]) / static_cast<double>(s.shape[1]);
  }
  std::vector<Number> of_heads;  // every head uses the same gate
  for (std::size_t i = 0; i < of_z.size(); ++i) of_heads.push_back(expected[i / width * D + i % D]);
  tape.differentiate(of_heads, s.dy);

  const std::vector<T> z = as<T>(s.u);
  std::vector<T> g(expected.size()), dz = as<T>(s.dy);
  shared_gate(view_of(g, s.shape[0], s.shape[2]), s.rows(z), s.fn, with_threads());
  expect_within("g", g, expected);
  shared_gate_backward(s.rows(dz), s.rows(dz), s.rows(z), s.fn, with_threads());
  expect_within("dz", dz, tape.gradients(of_z));
}

template <typename T>
void check_bias(Random& random) {
  const std::int64_t N = random_int(random, 1, 50), W = random_int(random, 1, 70), ldx = W + random_int(random, 0, 3);
  const auto x = random_values(random, N * ldx), b = random_values(random, W);
  std::vector<Number> moved(x.begin(), x.end()), sums(b.begin(), b.end());
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t w = 0; w < W; ++w) {
      moved[static_cast<std::size_t>(n * ldx + w)] += b[static_cast<std::size_t>(w)];
      sums[static_cast<std::size_t>(w)] += x[static_cast<std::size_t>(n * ldx + w)];
    }
  }
  std::vector<T> biased = as<T>(x), db = as<T>(b);
  const auto rows = [&](auto& values) { return view_of(values, N, ldx).range(1, 0, W); };
  const std::vector<T> dx = as<T>(x);
  add_bias(rows(biased), view_of(as<T>(b), W), with_threads());
  expect_within("x + b", biased, moved);
  add_column_sums(view_of(db, W), rows(dx), with_threads());
  expect_within("db", db, sums);
}

TEST(GateApply, Gate_EveryFunctionInBothPasses_MatchesTheFormula) {
  Random random(91);
  for (int round = 0; round < 120; ++round) {
    const GateSample s(random);
    check<double>(s);
    check<float>(s);
  }
}

TEST(GateApply, SharedGate_SeveralHeads_IsTheirMean) {
  Random random(92);
  for (int round = 0; round < 60; ++round) {
    const GateSample s(random);
    check_shared<double>(s);
    check_shared<float>(s);
  }
}

TEST(GateApply, Bias_BothPasses_MatchesTheFormula) {
  Random random(93);
  for (int round = 0; round < 40; ++round) {
    check_bias<double>(random);
    check_bias<float>(random);
  }
}

TEST(GateApply, Gate_LargeLogits_DoesNotOverflow) {
  const std::vector<float> z{-200.0F, 200.0F};
  const auto values = [&z](GateFn fn) {
    std::vector<float> g(z.size());
    gate_values(view_of(g, 2, 1, 1), view_of(z, 2, 1, 1), fn, with_threads());
    return g;
  };
  EXPECT_EQ(values(GateFn::sigmoid), (std::vector<float>{0.0F, 1.0F}));
  EXPECT_EQ(values(GateFn::sigmoid2), (std::vector<float>{0.0F, 2.0F}));
  EXPECT_EQ(values(GateFn::ns_sigmoid), (std::vector<float>{0.5F, 1.0F}));
  EXPECT_EQ(values(GateFn::softplus), (std::vector<float>{0.0F, 200.0F}));
}

}  // namespace
}  // namespace headgate::layers
