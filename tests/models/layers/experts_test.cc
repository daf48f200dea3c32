// SPDX-License-Identifier: Apache-2.0
#include "models/layers/experts.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "headgate/error.hpp"
#include "library/core/convert.hpp"
#include "models/layers/plain_experts.hpp"
#include "models/layers/support.hpp"
#include "models/layers/swiglu.hpp"

namespace headgate::layers {
namespace {

/// Both routers, each option of theirs, shared experts with and without a gate, clamps, both activations, k = E and
/// k = 1.
std::vector<ExpertsShape> shapes() {
  const ExpertsShape next{.C = 6, .E = 5, .active = 2, .I = 7, .S = 4};
  ExpertsShape raw = next, sigmoid = next, step = next, all = next, one = next;
  raw.renormalise = false, raw.S = 0, raw.scale = 1.5;
  sigmoid.router = ExpertRouter::sigmoid, sigmoid.scale = 3.0;
  step.router = ExpertRouter::sigmoid, step.renormalise = false, step.limit = 0.3, step.shared_limit = 0.5, step.S = 9;
  all.active = 5, all.limit = 0.4;
  one.active = one.E = one.I = 1;
  ExpertsShape shifted = next, bounded = next;
  shifted.activation = bounded.activation = ExpertActivation::shifted_swiglu;
  bounded.limit = 0.4, bounded.shared_limit = 0.3, bounded.active = 3;
  return {next, raw, sigmoid, step, all, one, shifted, bounded};
}

struct Options {
  bool bias = false;  ///< of experts and of the router
  bool shared_gate = false;
};

ExpertsShape with_tokens(ExpertsShape shape, std::int64_t N) {
  shape.N = N;
  return shape;
}

PlainExperts random_experts(Random& random, const ExpertsShape& s, const Options& options) {
  PlainExperts plain;
  plain.shape = s;
  plain.h = random_values(random, s.N * s.C);
  plain.router = random_values(random, s.E * s.C);
  if (options.bias && s.router == ExpertRouter::sigmoid) plain.bias = random_values(random, s.E);
  for (std::int64_t e = 0; e < s.E; ++e) {
    plain.experts.push_back({random_values(random, s.I * s.C),
                             random_values(random, s.I * s.C),
                             random_values(random, s.C * s.I),
                             {},
                             {},
                             {}});
  }
  for (PlainExpert& expert : plain.experts) {
    if (!options.bias) break;
    expert.gate_bias = random_values(random, s.I);
    expert.up_bias = random_values(random, s.I);
    expert.down_bias = random_values(random, s.C);
  }
  if (options.bias) plain.logit_bias = random_values(random, s.E);
  plain.shared = {
      random_values(random, s.S * s.C), random_values(random, s.S * s.C), random_values(random, s.C * s.S), {}, {}, {}};
  if (options.shared_gate && s.S > 0) plain.shared_gate = random_values(random, s.C);
  return plain;
}

BFloat16 converted(double x, BFloat16 /*as*/) { return to_bf16(static_cast<float>(x)); }
float converted(double x, float /*as*/) { return static_cast<float>(x); }
double converted(double x, double /*as*/) { return x; }

/// Experts in T, with matrices of M.
template <typename T, typename M = T>
class Layer {
 public:
  Layer(const PlainExperts& plain, const ExecutionContext& context)
      : shape_(plain.shape),
        context_(context),
        h_(as<T>(plain.h)),
        router_(as<T>(plain.router)),
        bias_(as<T>(plain.bias)),
        shared_gate_(as<T>(plain.shared_gate)),
        state_(plain.shape) {
    for (const PlainExpert& expert : plain.experts) experts_.push_back(matrices(expert, shape_.I));
    weights.router = view_of(std::as_const(router_), shape_.E, shape_.C);
    if (!bias_.empty()) weights.router_bias = view_of(std::as_const(bias_), shape_.E);
    weights.expert = [this](std::int64_t e) { return experts_[static_cast<std::size_t>(e)]; };
    if (shape_.S > 0) weights.shared = matrices(plain.shared, shape_.S);
    if (!shared_gate_.empty()) weights.shared_gate = view_of(std::as_const(shared_gate_), 1, shape_.C);
    add_biases(plain);
  }

  std::vector<T> forward(Update update = Update::overwrite, double base = 7.0) const {
    std::vector<T> out(h_.size(), static_cast<T>(base));
    experts_forward(view_of(out, shape_.N, shape_.C), view_of(h_, shape_.N, shape_.C), weights, *state_, shape_, update,
                    context_);
    return out;
  }

  ExpertsWeights<const T, const M> weights;

 private:
  void add_biases(const PlainExperts& plain) {
    if (plain.logit_bias.empty()) return;
    logit_bias_ = as<T>(plain.logit_bias);
    for (const PlainExpert& expert : plain.experts) {
      for (const auto* bias : {&expert.gate_bias, &expert.up_bias}) {
        for (const double x : *bias) gate_up_bias_.push_back(static_cast<T>(x));
      }
      for (const double x : expert.down_bias) down_bias_.push_back(static_cast<T>(x));
    }
    weights.logit_bias = view_of(std::as_const(logit_bias_), shape_.E);
    weights.gate_up_bias = view_of(std::as_const(gate_up_bias_), shape_.E * 2 * shape_.I);
    weights.down_bias = view_of(std::as_const(down_bias_), shape_.E * shape_.C);
  }

  ExpertMatrices<const M> matrices(const PlainExpert& expert, std::int64_t width) {
    return {matrix(expert.gate, width, shape_.C), matrix(expert.up, width, shape_.C),
            matrix(expert.down, shape_.C, width)};
  }
  View<const M, 2> matrix(const std::vector<double>& values, std::int64_t rows, std::int64_t columns) {
    std::vector<M>& stored = stored_.emplace_back();
    for (const double value : values) stored.push_back(converted(value, M{}));
    return {stored.data(), {rows, columns}};
  }

  ExpertsShape shape_;
  ExecutionContext context_;
  std::vector<T> h_, router_, bias_, shared_gate_, logit_bias_, gate_up_bias_, down_bias_;
  std::vector<std::vector<M>> stored_;
  std::vector<ExpertMatrices<const M>> experts_;
  Placed<ExpertsState<T>, Block> state_;
};

template <typename T>
void check_forward(const PlainExperts& plain, const ExecutionContext& context) {
  const Layer<T> layer(plain, context);
  const std::vector<Number> expected = plain.output();
  expect_within("out", layer.forward(), expected);
  expect_within("out +=", layer.forward(Update::add, 0.5), added(std::vector<double>(expected.size(), 0.5), expected));
}

class Experts : public OnTarget {};

TEST_P(Experts, Forward_EveryShapeAndOption_MatchesTheFormula) {
  Random random(51);
  for (const ExpertsShape& shape : shapes()) {
    for (const Options options : {Options{false, false}, Options{true, true}}) {
      for (const std::int64_t N : {0, 1, 2, 30}) {
        const PlainExperts plain = random_experts(random, with_tokens(shape, N), options);
        check_forward<double>(plain, on());
        check_forward<float>(plain, on());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Experts, ::testing::ValuesIn(supported_targets()), target_label);

TEST(ExpertsPass, MatricesInBf16_AreThoseOfTheirRoundedValues) {
  Random random(52);
  for (const std::int64_t N : {1, 40}) {
    PlainExperts plain = random_experts(random, with_tokens(shapes().front(), N), {});
    const auto rounded = [](PlainExpert& expert) {
      for (std::vector<double>* values : {&expert.gate, &expert.up, &expert.down}) {
        for (double& x : *values) x = static_cast<double>(to_f32(to_bf16(static_cast<float>(x))));
      }
    };
    std::for_each(plain.experts.begin(), plain.experts.end(), rounded);
    rounded(plain.shared);
    expect_within("out", Layer<float, BFloat16>(plain, with_threads()).forward(), plain.output());
  }
}

/// By hand: the gate is bounded above alone, the up on both sides, and 1 is added to it behind the bound.
TEST(ExpertsActivation, ShiftedSwiglu_BeyondTheLimit_IsBounded) {
  const std::vector<double> gate_up{10.0, -10.0, 1.0, 9.0, -9.0, 0.5};
  std::vector<double> h(3);
  swiglu_shifted_forward<double>(view_of(h, 1, 3), view_of(gate_up, 1, 6), 7.0, with_threads());
  const auto glu = [](double g) { return g / (1.0 + std::exp(-1.702 * g)); };
  EXPECT_NEAR(h[0], glu(7.0) * 8.0, 1e-13);
  EXPECT_NEAR(h[1], glu(-10.0) * -6.0, 1e-13);
  EXPECT_NEAR(h[2], glu(1.0) * 1.5, 1e-13);
  swiglu_shifted_forward<double>(view_of(h, 1, 3), view_of(gate_up, 1, 6), 0.0, with_threads());
  EXPECT_NEAR(h[0], glu(10.0) * 10.0, 1e-12);
}

TEST(ExpertsPass, ExpertsThatNoTokenChose_AreNotRead) {
  Random random(53);
  ExpertsShape shape = with_tokens(shapes()[2], 12);
  PlainExperts plain = random_experts(random, shape, {});
  plain.bias = {0.0, 9.0, 0.0, 9.0, 0.0};
  Layer<double> layer(plain, with_threads());
  layer.weights.expert = [expert = layer.weights.expert](std::int64_t e) {
    EXPECT_TRUE(e == 1 || e == 3) << "expert " << e;
    return expert(e);
  };
  expect_within("out", layer.forward(), plain.output());
}

TEST(ExpertsPass, Token_AloneOrAmongAFew_GetsTheSameBits) {
  Random random(54);
  const PlainExperts few = random_experts(random, with_tokens(shapes().front(), 8), {true, true});
  const std::vector<float> together = Layer<float>(few, with_threads()).forward();
  const std::int64_t C = few.shape.C;
  for (std::int64_t n = 0; n < 8; ++n) {
    PlainExperts one = few;
    one.shape.N = 1;
    one.h.assign(few.h.begin() + n * C, few.h.begin() + (n + 1) * C);
    const std::vector<float> row(together.begin() + n * C, together.begin() + (n + 1) * C);
    EXPECT_EQ(Layer<float>(one, with_threads()).forward(), row) << "token " << n;
  }
}

TEST(ExpertsPass, ThreadsOneAndTwo_GiveTheSameBits) {
  Random random(55);
  for (const std::int64_t N : {1, 5, 300}) {
    const ExpertsShape shape{.N = N, .C = 96, .E = 16, .active = 4, .I = 160, .S = 128};
    const PlainExperts plain = random_experts(random, shape, {true, true});
    EXPECT_EQ(Layer<float>(plain, with_threads(1)).forward(), Layer<float>(plain, with_threads(2)).forward());
  }
}

// --- routing -----------------------------------------------------------------------------------------------------

/// What the router made of given logits.
struct Routed {
  std::vector<std::int32_t> chosen, slot_tokens;
  std::vector<double> weights, slot_weights;
  std::vector<std::int64_t> first;
};

template <typename T, std::size_t kRank>
auto elements(const View<T, kRank>& view) {
  return std::vector<T>(view.data, view.data + view.count());
}

Routed route(ExpertsShape shape, const std::vector<double>& logits, const std::vector<double>& bias = {}) {
  shape.C = shape.I = 1;
  const Placed<ExpertsState<double>, Block> state(shape);
  std::copy(logits.begin(), logits.end(), state->logits.data);
  const View<const double, 1> of_bias = bias.empty() ? View<const double, 1>() : view_of(bias, shape.E);
  route_tokens(*state, of_bias, shape, with_threads());
  return {elements(state->chosen), elements(state->slot_tokens), elements(state->weights),
          elements(state->slot_weights), elements(state->first)};
}

TEST(ExpertsRouter, EqualLogits_ChooseTheLowestIndices) {
  const Routed routed = route({.N = 2, .E = 5, .active = 3}, {1, 2, 1, 2, 1, 0, 0, 0, 0, 0});
  EXPECT_EQ(routed.chosen, (std::vector<std::int32_t>{1, 3, 0, 0, 1, 2}));
  const Routed saturated = route({.N = 1, .E = 3, .active = 2, .router = ExpertRouter::sigmoid}, {50, 60, 70});
  EXPECT_EQ(saturated.chosen, (std::vector<std::int32_t>{0, 1})) << "σ is 1 in all three";
}

TEST(ExpertsRouter, Softmax_WeighsByAllOrByTheChosen) {
  ExpertsShape shape{.N = 1, .E = 3, .active = 2, .renormalise = false, .scale = 2.0};
  const std::vector<double> logits = {std::log(1.0), std::log(5.0), std::log(2.0)};
  Routed routed = route(shape, logits);
  EXPECT_EQ(routed.chosen, (std::vector<std::int32_t>{1, 2}));
  EXPECT_NEAR(routed.weights[0], 2.0 * 5.0 / 8.0, 1e-15);
  EXPECT_NEAR(routed.weights[1], 2.0 * 2.0 / 8.0, 1e-15);
  shape.renormalise = true;
  routed = route(shape, logits);
  EXPECT_NEAR(routed.weights[0], 2.0 * 5.0 / 7.0, 1e-15);
  EXPECT_NEAR(routed.weights[1], 2.0 * 2.0 / 7.0, 1e-15);
}

TEST(ExpertsRouter, LargeLogits_DoNotOverflow) {
  const Routed routed = route({.N = 1, .E = 3, .active = 2}, {5000, 5000, -5000});
  EXPECT_EQ(routed.weights, (std::vector<double>{0.5, 0.5}));
}

TEST(ExpertsRouter, SigmoidBias_ChangesTheChoiceButNotTheWeight) {
  const ExpertsShape shape{
      .N = 1, .E = 3, .active = 1, .router = ExpertRouter::sigmoid, .renormalise = false, .scale = 3.0};
  const Routed routed = route(shape, {2.0, 0.0, 1.0}, {0.0, 1.0, 0.0});
  EXPECT_EQ(routed.chosen, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(routed.weights, (std::vector<double>{1.5}));
}

TEST(ExpertsRouter, SigmoidsOfZero_RenormaliseToZero) {
  const ExpertsShape shape{.N = 1, .E = 2, .active = 2, .router = ExpertRouter::sigmoid};
  EXPECT_EQ(route(shape, {-5000, -5000}).weights, (std::vector<double>{0.0, 0.0}));
}

TEST(ExpertsRouter, Groups_HoldTheTokensOfEachExpertInOrder) {
  const Routed routed = route({.N = 3, .E = 4, .active = 2}, {0, 1, 2, -1, 3, -1, 0, -1, 0, 1, 2, -1});
  EXPECT_EQ(routed.chosen, (std::vector<std::int32_t>{2, 1, 0, 2, 2, 1}));
  EXPECT_EQ(routed.first, (std::vector<std::int64_t>{0, 1, 3, 6, 6}));
  EXPECT_EQ(routed.slot_tokens, (std::vector<std::int32_t>{1, 0, 2, 0, 1, 2}));
  for (const auto& [slot, choice] : {std::pair{0, 2}, {1, 1}, {2, 5}, {3, 0}, {4, 3}, {5, 4}}) {
    EXPECT_EQ(routed.slot_weights[static_cast<std::size_t>(slot)], routed.weights[static_cast<std::size_t>(choice)]);
  }
}

TEST(ExpertsRouter, NaNLogits_ChooseDistinctExperts) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ExpertRouter router : {ExpertRouter::softmax, ExpertRouter::sigmoid}) {
    const ExpertsShape shape{.N = 1, .E = 4, .active = 3, .router = router};
    for (const std::vector<double>& logits :
         {std::vector<double>{nan, nan, nan, nan}, {nan, 1, nan, 2}, {1, nan, 2, 0}}) {
      std::vector<std::int32_t> chosen = route(shape, logits).chosen;
      std::sort(chosen.begin(), chosen.end());
      EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
      EXPECT_TRUE(chosen.front() >= 0 && chosen.back() < 4);
    }
  }
}

TEST(ExpertsShapeOf, ImpossibleSizes_AreRefused) {
  const ExpertsShape good{.N = 1, .C = 1, .E = 2, .active = 1, .I = 1};
  EXPECT_NO_THROW(validate(good));
  for (const auto& spoil : std::vector<void (*)(ExpertsShape&)>{
           [](ExpertsShape& s) { s.active = 0; }, [](ExpertsShape& s) { s.active = 3; },
           [](ExpertsShape& s) { s.I = 0; }, [](ExpertsShape& s) { s.S = -1; }, [](ExpertsShape& s) { s.limit = -1.0; },
           [](ExpertsShape& s) { s.shared_limit = -1.0; }}) {
    ExpertsShape shape = good;
    spoil(shape);
    EXPECT_THROW(validate(shape), Error);
  }
}

}  // namespace
}  // namespace headgate::layers
