// SPDX-License-Identifier: Apache-2.0
// The same bits from the same call on the same number of threads, at sizes that every thread takes part in.

#include "layers/adamw.hpp"
#include "layers/cross_entropy.hpp"
#include "layers/linear.hpp"
#include "layers/rmsnorm.hpp"
#include "layers/rope.hpp"
#include "layers/support.hpp"
#include "layers/swiglu.hpp"

namespace headgate::layers {
namespace {

constexpr std::int64_t kTokens = 300, kWidth = 96, kOut = 160;

/// One pass through the layers; all that it computes, in one vector.
std::vector<float> pass() {
  Random random(81);
  const auto x = as<float>(random_values(random, kTokens * kWidth));
  const auto w = as<float>(random_values(random, kOut * kWidth)), norm = as<float>(random_values(random, kWidth));
  const auto targets = random_tokens(random, kTokens, kOut);
  const HeadShape shape{kTokens, 1, kWidth};
  const LinearShape linear{kTokens, kWidth, kOut};
  const auto rows = [](auto& values) { return rows_view(values.data(), kWidth); };

  std::vector<float> h(x.size()), rstd(kTokens), y(kTokens * kOut), cos(kTokens * kWidth / 2), sin(cos.size());
  rope_tables(cos.data(), sin.data(), kTokens, kWidth, 1e4);
  rmsnorm_forward<float>(rows(h), rstd.data(), rows(x), norm.data(), shape, {});
  rope_forward(rows(h), cos.data(), sin.data(), shape, {kTokens, kWidth});
  linear_forward(y.data(), h.data(), w.data(), linear);
  std::vector<float> dy(y.size()), dh(h.size()), dw(w.size(), 0.0F), dnorm(kWidth, 0.0F), gated(y.size() / 2);
  swiglu_forward(gated.data(), y.data(), kTokens, kOut / 2);
  const double loss = cross_entropy<float>(nullptr, dy.data(), y.data(), targets.data(), kTokens, kOut);
  linear_backward(dh.data(), dw.data(), dy.data(), h.data(), w.data(), linear);
  rope_backward(rows(dh), cos.data(), sin.data(), shape, {kTokens, kWidth});
  rmsnorm_backward<float>(rows(dh), dnorm.data(), rows(dh), rows(x), norm.data(), rstd.data(), shape, {},
                          Store::overwrite);
  std::vector<float> stepped = w, m(w.size(), 0.0F), v(w.size(), 0.0F);
  adamw_step(stepped.data(), m.data(), v.data(), dw.data(), static_cast<std::int64_t>(w.size()), {});

  std::vector<float> all = {static_cast<float>(loss), static_cast<float>(squared_norm(dw.data(), kOut * kWidth))};
  for (const auto* part : {&h, &y, &gated, &dy, &dh, &dw, &dnorm, &stepped}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

class Determinism : public OnTarget {};

TEST_P(Determinism, SameBitsAtTheSameNumberOfThreads) {
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    const std::vector<float> first = pass();
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(pass(), first) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Determinism, testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
