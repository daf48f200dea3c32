// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "headgate/error.hpp"
#include "models/decoder/decoder.hpp"
#include "models/decoder/tiny.hpp"

// Compares sequences that pass through the layers in parts with those that pass at once.

namespace headgate::models {
namespace {

/// Adds sinks to all families.
std::vector<DecoderConfig> families() {
  std::vector<DecoderConfig> out = all_families();
  DecoderConfig sinks = tiny_config();
  sinks.gate = layers::parse_gate("g1-headwise-learned_sinks");
  out.push_back(sinks);
  return out;
}

template <typename T>
struct Results {
  double loss = 0.0;
  std::vector<T> token_losses, log_probabilities;
};

template <typename T>
Results<T> results_of(const DecoderConfig& config, std::int64_t seq, std::int64_t part) {
  Decoder<T> decoder(config, {1, seq}, Purpose::evaluate, {}, {.tokens = part});
  std::vector<T> values;
  for (const double value : large_parameters(decoder.table(), 7)) values.push_back(static_cast<T>(value));
  const TinyBatch batch(config, {1, seq}, 3);
  Results<T> out;
  out.token_losses.resize(batch.tokens.size());
  out.log_probabilities.resize(batch.tokens.size() * static_cast<std::size_t>(config.vocab));
  out.loss = decoder.loss(values.data(), batch.tokens.data(), batch.targets.data(), nullptr, out.token_losses.data());
  decoder.log_probabilities(out.log_probabilities.data(), values.data(), batch.tokens.data());
  return out;
}

template <typename T>
void expect_near(const std::vector<T>& got, const std::vector<T>& wanted, double slack) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(wanted[i]), slack) << i;
  }
}

/// Compares a sequence in parts of several sizes with the same sequence in one pass.
template <typename T>
void check_parts(const DecoderConfig& config, std::int64_t tokens, const std::vector<std::int64_t>& parts,
                 double loss_slack, double slack) {
  const Results<T> wanted = results_of<T>(config, tokens, 0);
  for (const std::int64_t part : parts) {
    SCOPED_TRACE(testing::Message() << "parts of " << part);
    const Results<T> got = results_of<T>(config, tokens, part);
    EXPECT_NEAR(got.loss, wanted.loss, loss_slack);
    expect_near(got.token_losses, wanted.token_losses, slack);
    expect_near(got.log_probabilities, wanted.log_probabilities, slack);
  }
}

TEST(DecoderParts, Losses_PartsOfAnySize_AreThoseOfOnePass) {
  for (const DecoderConfig& config : families()) check_parts<double>(config, 7, {1, 2, 3, 6, 7, 9}, 1e-12, 1e-11);
}

/// Longer than pages of the cache and tiles of the kernels.
TEST(DecoderParts, Losses_LongSequence_AreThoseOfOnePass) {
  for (DecoderConfig config : families()) {
    config.seq_len = 333;
    if (config.window > 0) config.window = 70;
    check_parts<float>(config, 333, {64, 100, 332}, 1e-4, 2e-3);
  }
}

TEST(DecoderParts, SecondPass_SameDecoder_IsBitwiseIdentical) {
  const DecoderConfig config = mixed_families().front();
  Decoder<double> decoder(config, {1, 7}, Purpose::evaluate, {}, {.tokens = 3});
  const std::vector<double> values = large_parameters(decoder.table(), 7);
  const TinyBatch batch(config, {1, 7}, 3);
  const double first = decoder.loss(values.data(), batch.tokens.data(), batch.targets.data());
  EXPECT_EQ(decoder.loss(values.data(), batch.tokens.data(), batch.targets.data()), first);
}

TEST(DecoderParts, LogProbabilities_BeyondTheSequence_AreRefused) {
  DecoderConfig config = tiny_config();
  config.seq_len = 8;
  Decoder<double> decoder(config, {1, 8}, Purpose::evaluate, {}, {.tokens = 4});
  const std::vector<double> parameters = large_parameters(decoder.table(), 7);
  decoder.run(parameters.data(), TinyBatch(config, {1, 8}, 3).tokens.data());
  std::vector<double> out(static_cast<std::size_t>(8 * config.vocab));
  for (const auto& [first, count] : {std::pair{8, 1}, std::pair{-1, 1}, std::pair{-5, 2}, std::pair{3, 2}}) {
    EXPECT_THROW(decoder.some_log_probabilities(out.data(), parameters.data(), first, count), Error) << first;
  }
}

TEST(DecoderParts, MemoryPlan_PartsWithAShorterLast_AddsUpToItsBytes) {
  for (const DecoderConfig& config : mixed_families()) {
    for (const bool keeps : {false, true}) {
      const PartOptions parts{.tokens = 3, .stores_delta_inputs = keeps, .cache = keeps ? DType::i8 : DType::none};
      const Decoder<float> decoder(config, {1, 7}, Purpose::evaluate, {}, parts);
      const std::vector<MemoryItem> plan = decoder.memory_plan();
      const std::size_t planned = std::accumulate(plan.begin(), plan.end(), std::size_t{0},
                                                  [](std::size_t sum, const MemoryItem& x) { return sum + x.bytes; });
      EXPECT_EQ(planned, decoder.memory_bytes());
    }
  }
}

/// Of each token more, a sequence in parts takes its residual stream, and one layer's keys and values.
TEST(DecoderParts, Memory_LongerSequence_GrowsByStreamAndCacheAlone) {
  DecoderConfig config = mixed_families().front();
  config.seq_len = 4096;
  const auto bytes = [&](std::int64_t seq) {
    return static_cast<std::int64_t>(
        Decoder<float>(config, {1, seq}, Purpose::evaluate, {}, {.tokens = 64}).memory_bytes());
  };
  const std::int64_t of_token = 4 * (config.dim + 2 * config.kv_heads * config.head_dim);
  EXPECT_EQ(bytes(4096) - bytes(1024), 3072 * of_token);
}

TEST(DecoderParts, Parts_OfWhatCannotBeCut_AreRefused) {
  const DecoderConfig config = tiny_config();
  const auto make = [&](BatchShape shape, Purpose purpose, std::int64_t part) {
    const Decoder<double> made(config, shape, purpose, {}, {.tokens = part});
  };
  EXPECT_THROW(make({2, 7}, Purpose::evaluate, 3), Error);
  EXPECT_THROW(make({1, 7}, Purpose::train, 3), Error);
  EXPECT_THROW(make({1, 7}, Purpose::evaluate, -1), Error);
  EXPECT_THROW(Decoder<double>::planned_memory(config, {2, 7}, Purpose::evaluate, {.tokens = 3}), Error);
  EXPECT_NO_THROW(make({2, 7}, Purpose::train, 7));
  const auto with_cache = [&](BatchShape shape, std::int64_t part, DType cache) {
    const Decoder<float> made(config, shape, Purpose::evaluate, {}, {.tokens = part, .cache = cache});
  };
  EXPECT_NO_THROW(with_cache({1, 7}, 7, DType::i8));
  EXPECT_THROW(with_cache({1, 7}, 0, DType::i8), Error);
  EXPECT_THROW(with_cache({2, 7}, 7, DType::i8), Error);
  EXPECT_THROW(with_cache({1, 7}, 7, DType::f32), Error);
  const auto rounded = [&](BatchShape shape, Purpose purpose, std::int64_t part, layers::ActivationRounding rounding) {
    const Decoder<float> made(config, shape, purpose, {}, {.tokens = part, .activations = rounding});
  };
  using enum layers::ActivationRounding;
  EXPECT_NO_THROW(rounded({1, 7}, Purpose::evaluate, 7, tensor));
  EXPECT_NO_THROW(rounded({1, 7}, Purpose::evaluate, 3, token));
  EXPECT_THROW(rounded({2, 7}, Purpose::evaluate, 0, tensor), Error);
  EXPECT_THROW(rounded({1, 7}, Purpose::evaluate, 3, tensor), Error);
  EXPECT_THROW(rounded({1, 7}, Purpose::evaluate, 3, tensor_keep_first), Error);
  EXPECT_THROW(rounded({1, 7}, Purpose::train, 0, token), Error);
  EXPECT_THROW(Decoder<BFloat16>(config, {1, 7}, Purpose::evaluate, {}, {.activations = token}), Error);

  Decoder<double> decoder(config, {1, 7}, Purpose::evaluate, {}, {.tokens = 3});
  const std::vector<double> values = large_parameters(decoder.table(), 7);
  const TinyBatch batch(config, {1, 7}, 3);
  LayerOverride<double> replaced;
  replaced.heads.count = 1;
  EXPECT_THROW(decoder.loss_with(replaced, values.data(), batch.tokens.data(), batch.targets.data()), Error);
}

}  // namespace
}  // namespace headgate::models
