// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "models/decoder/bf16_losses.hpp"
#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/shown_activations.hpp"
#include "models/decoder/tiny.hpp"
#include "models/layers/support.hpp"

// Compares passes in bf16 with the formulas: whole sequences, sequences in parts, experts, and what observers see.

namespace headgate::models {
namespace {

std::vector<DecoderConfig> families() {
  std::vector<DecoderConfig> out = all_families();
  for (const char* gate : {"none", "g1-headwise-learned_sinks", "g3-elementwise-parameter", "g5-headwise"}) {
    out.push_back(tiny_config());
    out.back().gate = layers::parse_gate(gate);
  }
  return out;
}

struct Sample {
  Sample(const DecoderConfig& config, BatchShape shape)
      : values(single_precision(large_parameters(ParameterTable(config), 17))),
        f32(layers::as<float>(values)),
        batch(config, shape, 5) {}

  std::vector<double> values;
  std::vector<float> f32;
  TinyBatch batch;
};

/// Checks the losses of a decoder that rounds, and the log-probabilities of the same targets.
void check(const DecoderConfig& config, BatchShape shape, std::int64_t part) {
  const Sample sample(config, shape);
  const auto expected =
      losses_with_magnitudes(config, sample.values, shape, sample.batch.tokens.data(), sample.batch.targets.data());
  const auto decoder = make_decoder(config, shape, Purpose::evaluate, ModelPrecision::bf16, {}, {.tokens = part});
  std::vector<float> losses(sample.batch.tokens.size());
  std::vector<float> log_probabilities(losses.size() * static_cast<std::size_t>(config.vocab));
  decoder->loss(sample.f32.data(), sample.batch.tokens.data(), sample.batch.targets.data(), nullptr, losses.data());
  expect_bf16(losses, expected.losses);
  decoder->log_probabilities(log_probabilities.data(), sample.f32.data(), sample.batch.tokens.data());
  for (std::size_t n = 0; n < losses.size(); ++n) {
    const std::int32_t target = sample.batch.targets[n];
    if (target < 0) continue;
    const std::size_t at = n * static_cast<std::size_t>(config.vocab) + static_cast<std::size_t>(target);
    EXPECT_NEAR(-log_probabilities[at], losses[n], 8 * 0x1p-24 * (1.0 + std::abs(losses[n])));
  }
}

TEST(DecoderBf16, Losses_EveryFamily_AreWithinRoundingsToBf16) {
  for (const DecoderConfig& config : families()) {
    SCOPED_TRACE(testing::Message() << "gate " << layers::gate_name(config.gate));
    check(config, kTinyBatch, 0);
  }
}

TEST(DecoderBf16, Losses_SequenceInParts_AreWithinRoundingsToBf16) {
  for (const DecoderConfig& config : families()) {
    for (const std::int64_t part : {2, 3}) {
      SCOPED_TRACE(testing::Message() << "gate " << layers::gate_name(config.gate) << ", parts of " << part);
      check(config, {1, 7}, part);
    }
  }
}

TEST(DecoderBf16, MemoryPlan_WithObserversAndParts_AddsUpToItsBytes) {
  for (const DecoderConfig& config : families()) {
    for (const std::int64_t part : {0, 3}) {
      const Decoder<BFloat16> decoder(config, {1, 7}, Purpose::evaluate, {},
                                      {.tokens = part, .stores_delta_inputs = true});
      const std::vector<MemoryItem> plan = decoder.memory_plan();
      const std::size_t planned = std::accumulate(plan.begin(), plan.end(), std::size_t{0},
                                                  [](std::size_t sum, const MemoryItem& x) { return sum + x.bytes; });
      EXPECT_EQ(planned, decoder.memory_bytes());
    }
  }
}

/// Compares the parts of views with those of a decoder in f32.
class Seen : public LayerObserver<float> {
 public:
  Taps taps() const override {
    return {Tap::scores, Tap::sequence_delta_inputs, Tap::gate_logits, Tap::values, Tap::head_outputs, Tap::output};
  }
  void after_layer(const LayerView<float>& view) override {
    dtypes.push_back(view.type == LayerType::linear_attention ? view.delta_inputs.q.dtype : view.q.dtype);
    for (const View<const float, 3>& part : {view.v, view.gate, view.head_outputs}) {
      numbers.emplace_back();
      if (!part.present()) continue;
      for (std::int64_t n = 0; n < part.shape[0]; ++n) {
        for (std::int64_t h = 0; h < part.shape[1]; ++h) {
          numbers.back().insert(numbers.back().end(), part.at(n, h), part.at(n, h) + part.shape[2]);
        }
      }
    }
  }

  std::vector<DType> dtypes;                // of q
  std::vector<std::vector<float>> numbers;  // of the parts that are widened, one layer after the other
};

Seen seen(const DecoderConfig& config, ModelPrecision precision) {
  const Sample sample(config, kTinyBatch);
  Seen out;
  make_decoder(config, kTinyBatch, Purpose::evaluate, precision)
      ->loss(sample.f32.data(), sample.batch.tokens.data(), sample.batch.targets.data(), &out);
  return out;
}

TEST(DecoderBf16, LayerViews_EveryFamily_AreWidenedActivations) {
  for (const DecoderConfig& config : families()) {
    SCOPED_TRACE(testing::Message() << "gate " << layers::gate_name(config.gate));
    const Seen narrow = seen(config, ModelPrecision::bf16), wide = seen(config, ModelPrecision::f32);
    EXPECT_EQ(narrow.dtypes, std::vector<DType>(static_cast<std::size_t>(config.layers), DType::bf16));
    ASSERT_EQ(narrow.numbers.size(), wide.numbers.size());
    for (std::size_t i = 0; i < wide.numbers.size(); ++i) {
      ASSERT_EQ(narrow.numbers[i].size(), wide.numbers[i].size());
      double error = 0.0, size = 0.0;
      for (std::size_t j = 0; j < wide.numbers[i].size(); ++j) {
        EXPECT_EQ(to_f32(to_bf16(narrow.numbers[i][j])), narrow.numbers[i][j]) << "not an activation in bf16";
        error = std::hypot(error, static_cast<double>(narrow.numbers[i][j] - wide.numbers[i][j]));
        size = std::hypot(size, static_cast<double>(wide.numbers[i][j]));
      }
      EXPECT_LE(error, 0.5 * size) << "of another tensor";
    }
  }
}

TEST(ShownActivations, TokensAtStrideZero_StayThere) {
  const std::vector<BFloat16> gate{to_bf16(0.5F), to_bf16(-2.0F), to_bf16(3.0F), to_bf16(0.0F)};
  std::vector<float> memory(gate.size());
  const View<const float, 3> out = shown<BFloat16>({memory.data(), {4}}, {gate.data(), {9, 2, 2}, {0, 2, 1}}, {});
  EXPECT_EQ(out.shape, (std::array<std::int64_t, 3>{9, 2, 2}));
  EXPECT_EQ(out.at(8, 1), memory.data() + 2);
  EXPECT_EQ(memory, (std::vector<float>{0.5F, -2.0F, 3.0F, 0.0F}));
}

}  // namespace
}  // namespace headgate::models
