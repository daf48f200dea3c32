// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/decoder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/decoder/tiny.hpp"
#include "models/layers/adamw.hpp"
#include "models/layers/support.hpp"
#include "support/allocations.hpp"

namespace headgate::models {
namespace {

template <typename T>
std::vector<T> initial(const Decoder<T>& decoder, std::uint64_t seed = 1) {
  std::vector<T> values(static_cast<std::size_t>(decoder.table().total()));
  initialise(values.data(), decoder.table(), decoder.config(), seed);
  return values;
}

class EveryGrain : public testing::TestWithParam<std::string> {};

TEST_P(EveryGrain, Training_EveryGrain_OverfitsOneBatch) {
  DecoderConfig config = tiny_config();
  config.dim = 32;
  config.head_dim = 8;
  config.ffn = 64;
  config.seq_len = 12;
  config.gate = layers::parse_gate(GetParam());
  const BatchShape shape{4, 12};
  Decoder<float> decoder(config, shape, Purpose::train);
  std::vector<float> w = initial(decoder), g(w.size()), m(w.size()), v(w.size());
  TinyBatch batch(config, shape, 3);
  for (std::int32_t b = 0; b < 4; ++b) batch.tokens[static_cast<std::size_t>(b * shape.seq)] = b;  // all different
  double first = 0.0, last = 0.0;
  for (int step = 1; step <= 150; ++step) {
    std::fill(g.begin(), g.end(), 0.0F);
    last = decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data());
    if (step == 1) first = last;
    const auto all = [](std::vector<float>& numbers) { return view_of(numbers, numbers.size()); };
    layers::adamw_step(all(w), all(m), all(v), all(g), {.lr = 1e-2, .step = step}, decoder.context());
  }
  EXPECT_NEAR(first, std::log(static_cast<double>(config.vocab)), 0.2);  // an untrained model guesses uniformly
  EXPECT_LT(last, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Gates, EveryGrain,
                         testing::Values("none", "headwise", "elementwise", "head_shared", "g2", "g3", "g4", "g5"));

TEST(Decoder, GateThreshold_ClosedRows_AreLeftOut) {
  for (const char* name : {"headwise", "elementwise", "head_shared"}) {
    DecoderConfig config = tiny_config();
    config.gate = layers::parse_gate(name);
    Decoder<double> decoder(config, kTinyBatch, Purpose::evaluate);
    const std::vector<double> w = initial(decoder);
    const TinyBatch batch(config, kTinyBatch, 3);
    const auto loss = [&](layers::AttentionSkip* skip) {
      return decoder.loss(w.data(), batch.tokens.data(), batch.targets.data(), nullptr, nullptr, skip);
    };
    const double expected = loss(nullptr);
    layers::AttentionSkip none;
    EXPECT_EQ(loss(&none), expected) << name;
    EXPECT_EQ(none.closed_rows, 0);
    EXPECT_EQ(none.rows, config.layers * config.heads * kTinyBatch.batch * kTinyBatch.seq);
    layers::AttentionSkip all;
    all.threshold = 1.0;  // closes every row of a sigmoid gate
    EXPECT_NE(loss(&all), expected) << name;
    EXPECT_EQ(all.closed_share(), 1.0);
  }
}

TEST(Decoder, GateThreshold_OtherGates_IsRefused) {
  for (const char* name : {"none", "g1-headwise-add", "g2", "g5"}) {
    DecoderConfig config = tiny_config();
    config.gate = layers::parse_gate(name);
    Decoder<double> decoder(config, kTinyBatch, Purpose::evaluate);
    const std::vector<double> w = initial(decoder);
    const TinyBatch batch(config, kTinyBatch, 3);
    layers::AttentionSkip skip;
    skip.threshold = 0.1;
    EXPECT_THROW(decoder.loss(w.data(), batch.tokens.data(), batch.targets.data(), nullptr, nullptr, &skip), Error);
  }
}

TEST(Decoder, Step_AfterTheFirst_AllocatesNothing) {
  if (!support::allocations_are_counted()) GTEST_SKIP() << "operator new belongs to the thread sanitizer";
  const BatchShape shape{8, 128};
  for (const char* name : {"none", "g1-elementwise", "g1-head_shared-parameter-learned_sinks", "g5-headwise"}) {
    DecoderConfig config = tiny_config();
    config.seq_len = shape.seq;
    config.gate = layers::parse_gate(name);
    Decoder<float> decoder(config, shape, Purpose::train);
    std::vector<float> w = initial(decoder), g(w.size());
    const TinyBatch batch(config, shape, 3);
    const auto step = [&] {
      decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data());
    };
    step();
    const std::size_t before = support::allocations();
    step();
    step();
    EXPECT_EQ(support::allocations(), before) << name;
  }
  EXPECT_GT(support::allocations(), 0U);  // allocations are counted
}

TEST(Decoder, MemoryPlan_EveryItem_AddsUpToWhatIsTaken) {
  DecoderConfig config = tiny_config();
  config.layers = 5;
  config.dim = config.ffn = 64;
  const Decoder<float> train(config, kTinyBatch, Purpose::train), evaluate(config, kTinyBatch, Purpose::evaluate);
  for (const Decoder<float>* decoder : {&train, &evaluate}) {
    std::size_t sum = 0;
    for (const MemoryItem& item : decoder->memory_plan()) {
      EXPECT_FALSE(item.name.empty());
      sum += item.bytes;
    }
    EXPECT_EQ(sum, decoder->memory_bytes());
  }
  const std::size_t N = 14;
  EXPECT_GE(train.memory_bytes(), 5 * N * (4 * 64 + 2 * 64) * sizeof(float));  // x, h, both halves; gate and up
  EXPECT_LT(evaluate.memory_bytes(), train.memory_bytes() / 3);
}

TEST(Decoder, Loss_RepeatedOrOfEitherPurpose_IsBitwiseIdentical) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate("elementwise");
  Decoder<float> train(config, kTinyBatch, Purpose::train), evaluate(config, kTinyBatch, Purpose::evaluate);
  const std::vector<float> w = initial(train);
  const TinyBatch batch(config, kTinyBatch, 3), other(config, kTinyBatch, 4);
  std::vector<float> first(w.size()), second(w.size());
  const auto run = [&](std::vector<float>& g, const TinyBatch& b) {
    return train.loss_and_gradients(g.data(), w.data(), b.tokens.data(), b.targets.data());
  };
  const double loss = run(first, batch);
  std::vector<float> unused(w.size());
  run(unused, other);
  EXPECT_EQ(run(second, batch), loss);
  EXPECT_EQ(first, second);
  EXPECT_EQ(evaluate.loss(w.data(), batch.tokens.data(), batch.targets.data()), loss);
  EXPECT_EQ(train.loss(w.data(), batch.tokens.data(), batch.targets.data()), loss);
}

/// With a large vocabulary the logits come in chunks, over which ignored targets are spread unevenly.
TEST(Decoder, Loss_InChunks_IsTheMeanOverAllTargets) {
  DecoderConfig config = tiny_config();
  config.vocab = 1 << 16;
  config.seq_len = 100;
  const BatchShape shape{2, 100};
  Decoder<double> decoder(config, shape, Purpose::train);
  const std::vector<double> w = initial(decoder);
  TinyBatch batch(config, shape, 3);
  for (std::size_t n = 0; n < 130; n += 1 + n % 3) batch.targets[n] = -1;
  std::vector<double> losses(batch.tokens.size()), g(w.size());
  const double loss =
      decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data(), 1.0, losses.data());
  layers::Number sum;
  double count = 0.0;
  for (std::size_t n = 0; n < losses.size(); ++n) {
    sum += losses[n];
    count += batch.targets[n] >= 0 ? 1.0 : 0.0;
  }
  layers::expect_within("mean", loss, sum / count);
  // Changes a weight that affects every row of every chunk. Models changed before the last norm would not differ. The
  // terms of a logit add up to at most 8 · the largest weight < 1, and a loss is the logarithm of a sum of vocab
  // exponentials.
  const std::int64_t norm = decoder.table().find("model.norm.weight")->offset;
  const auto loss_at = [&](double step) {
    std::vector<double> moved = w;
    moved[static_cast<std::size_t>(norm)] += step;
    return decoder.loss(moved.data(), batch.tokens.data(), batch.targets.data());
  };
  const layers::Slope slope = layers::central_difference(loss_at, layers::number(loss, loss + 5.0, config.vocab));
  const double gradient = g[static_cast<std::size_t>(norm)];
  EXPECT_NEAR(gradient, slope.value, slope.tolerance);
  EXPECT_GT(std::abs(gradient), 100.0 * slope.tolerance) << "a difference that says nothing";
}

TEST(Decoder, Loss_NoTargets_IsZero) {
  const DecoderConfig config = tiny_config();
  Decoder<double> decoder(config, kTinyBatch, Purpose::train);
  const std::vector<double> w = initial(decoder);
  TinyBatch batch(config, kTinyBatch, 3);
  std::fill(batch.targets.begin(), batch.targets.end(), -1);
  std::vector<double> g(w.size());
  EXPECT_EQ(decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data()), 0.0);
  EXPECT_EQ(g, std::vector<double>(w.size(), 0.0));
}

TEST(Decoder, Loss_NaNInAnyWeight_IsNaN) {
  const DecoderConfig config = tiny_config();
  Decoder<float> decoder(config, kTinyBatch, Purpose::train);
  std::vector<float> w = initial(decoder), g(w.size());
  w[static_cast<std::size_t>(decoder.table().find("model.layers.0.mlp.up_proj.weight")->offset)] =
      std::numeric_limits<float>::quiet_NaN();
  const TinyBatch batch(config, kTinyBatch, 3);
  EXPECT_TRUE(std::isnan(decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data())));
}

TEST(Decoder, Decoder_BadConfigOrShape_IsRefused) {
  const DecoderConfig config = tiny_config();
  EXPECT_THROW(Decoder<float>(config, {1, 8}, Purpose::train), Error);  // seq_len is 7
  EXPECT_THROW(Decoder<float>(config, {1, 0}, Purpose::train), Error);
  EXPECT_THROW(Decoder<float>(config, {0, 7}, Purpose::train), Error);
  Decoder<float> evaluate(config, kTinyBatch, Purpose::evaluate);
  const std::vector<float> w = initial(evaluate);
  std::vector<float> g(w.size());
  TinyBatch batch(config, kTinyBatch, 3);
  EXPECT_THROW(evaluate.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data()), Error);
  batch.tokens[5] = 11;
  EXPECT_THROW(evaluate.loss(w.data(), batch.tokens.data(), batch.targets.data()), Error);
  batch.tokens[5] = -1;
  EXPECT_THROW(evaluate.loss(w.data(), batch.tokens.data(), batch.targets.data()), Error);
  batch.tokens[5] = 0;
  batch.targets[5] = -2;
  EXPECT_THROW(evaluate.loss(w.data(), batch.tokens.data(), batch.targets.data()), Error);
}

}  // namespace
}  // namespace headgate::models
