// SPDX-License-Identifier: Apache-2.0
// Checks that the same call on the same number of threads is bitwise identical, at sizes that use every thread.

#include <numeric>

#include "models/layers/adamw.hpp"
#include "models/layers/cross_entropy.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/rmsnorm.hpp"
#include "models/layers/rope.hpp"
#include "models/layers/support.hpp"
#include "models/layers/swiglu.hpp"
#include "support/forked.hpp"

namespace headgate::layers {
namespace {

constexpr std::int64_t kTokens = 300, kWidth = 96, kOut = 160;

/// Runs all layers once. Returns all results in one vector.
std::vector<float> pass(const ExecutionContext& context) {
  Random random(81);
  const auto x = as<float>(random_values(random, kTokens * kWidth));
  const auto w = as<float>(random_values(random, kOut * kWidth)), norm = as<float>(random_values(random, kWidth));
  const auto targets = random_tokens(random, kTokens, kOut);
  const auto heads = [](auto& values) { return view_of(values, kTokens, 1, kWidth); };
  const auto tokens = [](auto& values) { return view_of(values, 1, kTokens, 1, kWidth); };
  const auto in = [](auto& values) { return view_of(values, kTokens, kWidth); };
  const auto out = [](auto& values) { return view_of(values, kTokens, kOut); };
  const auto table = [](auto& values) { return view_of(values, kTokens, kWidth / 2); };
  const auto weights = [](auto& values) { return view_of(values, kOut, kWidth); };
  const auto all_weights = [](auto& values) { return view_of(values, kOut * kWidth); };
  std::vector<std::int64_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);

  std::vector<float> h(x.size()), rstd(kTokens), y(kTokens * kOut), cos(kTokens * kWidth / 2), sin(cos.size());
  rope_tables(table(cos), table(sin), view_of(positions, kTokens), rope_frequencies(kWidth, 1e4));
  rmsnorm_forward(heads(h), view_of(rstd, kTokens, 1), heads(x), view_of(norm, kWidth), {}, context);
  rope_forward(tokens(h), table(cos), table(sin), context);
  linear_forward(out(y), in(h), weights(w), Update::overwrite, context);
  std::vector<float> dy(y.size()), dh(h.size()), dw(w.size(), 0.0F), dnorm(kWidth, 0.0F), gated(y.size() / 2);
  swiglu_forward(view_of(gated, kTokens, kOut / 2), out(y), Activation::silu, context);
  const double loss = cross_entropy({}, out(dy), out(y), view_of(targets, kTokens), 1.0, context);
  linear_backward_input(in(dh), out(dy), weights(w), Update::overwrite, context);
  linear_backward_weight(weights(dw), out(dy), in(h), context);
  rope_backward(tokens(dh), table(cos), table(sin), context);
  rmsnorm_backward(heads(dh), view_of(dnorm, kWidth), heads(dh), heads(x), view_of(norm, kWidth),
                   view_of(rstd, kTokens, 1), {}, Update::overwrite, context);
  std::vector<float> stepped = w, m(w.size(), 0.0F), v(w.size(), 0.0F);
  adamw_step(all_weights(stepped), all_weights(m), all_weights(v), all_weights(dw), {}, context);

  std::vector<float> all = {static_cast<float>(loss),
                            static_cast<float>(squared_norm<float>(all_weights(dw), context))};
  for (const auto* part : {&h, &y, &gated, &dy, &dh, &dw, &dnorm, &stepped}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

class Determinism : public OnTarget {};

TEST_P(Determinism, EveryLayer_SameNumberOfThreads_IsBitwiseIdentical) {
  for (const int threads : {1, 2, 3}) {
    const std::vector<float> first = pass(on(threads));
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(pass(on(threads)), first) << threads << " threads";
  }
}

TEST_P(Determinism, EveryLayer_ForkedChild_IsBitwiseIdentical) {
  if (!headgate::testing::kCanFork) GTEST_SKIP() << "the thread sanitizer allows no threads after a fork";
  const std::vector<float> expected = pass(on(3));
  EXPECT_EQ(headgate::testing::in_forked_child([&] { return pass(on(3)) == expected; }), "passed");
}

INSTANTIATE_TEST_SUITE_P(Targets, Determinism, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
