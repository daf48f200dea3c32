// SPDX-License-Identifier: Apache-2.0
#include "models/layers/embedding.hpp"

#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

class Embedding : public OnTarget {};

TEST_P(Embedding, Embedding_AnyTokens_GathersRows) {
  Random random(51);
  for (const std::int64_t C : {1, 7, 16, 33}) {
    const auto table = random_values(random, 10 * C);
    const auto tokens = random_tokens(random, 25, 10);
    std::vector<double> y(static_cast<std::size_t>(25 * C));
    embedding_forward(view_of(y, 25, C), view_of(table, 10, C), view_of(tokens, 25), on());
    for (std::int64_t n = 0; n < 25; ++n) {
      for (std::int64_t c = 0; c < C; ++c) {
        EXPECT_EQ(y[static_cast<std::size_t>(n * C + c)],
                  table[static_cast<std::size_t>(tokens[static_cast<std::size_t>(n)] * C + c)]);
      }
    }
  }
}

template <typename T>
void check_gradient(Random& random, const ExecutionContext& context) {
  const std::int64_t N = random_int(random, 1, 30), C = random_int(random, 1, 40), V = random_int(random, 1, 12);
  const auto dy = random_values(random, N * C), base = random_values(random, V * C);
  const auto tokens = random_tokens(random, N, V);
  std::vector<Number> expected(base.begin(), base.end());
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t c = 0; c < C; ++c) {
      expected[static_cast<std::size_t>(tokens[static_cast<std::size_t>(n)] * C + c)] +=
          dy[static_cast<std::size_t>(n * C + c)];
    }
  }
  std::vector<T> gradient = as<T>(base);
  embedding_backward(view_of(gradient, V, C), view_of(as<T>(dy), N, C), view_of(tokens, N), context);
  expect_within("dtable", gradient, expected);
}

TEST_P(Embedding, Gradient_RepeatedTokens_AddsUp) {
  Random random(52);
  for (int round = 0; round < 20; ++round) {
    check_gradient<double>(random, on());
    check_gradient<float>(random, on());
  }
}

TEST_P(Embedding, Gradient_AnyNumberOfThreads_IsBitwiseIdentical) {
  Random random(53);
  const std::int64_t N = 700, C = 100, V = 5;
  const auto dy = as<float>(random_values(random, N * C));
  const auto tokens = random_tokens(random, N, V);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    std::vector<float> gradient(static_cast<std::size_t>(V * C), 0.0F);
    embedding_backward(view_of(gradient, V, C), view_of(dy, N, C), view_of(tokens, N), on(threads));
    results.push_back(gradient);
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

INSTANTIATE_TEST_SUITE_P(Targets, Embedding, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
