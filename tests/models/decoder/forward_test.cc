// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/support.hpp"
#include "support/test_runs.hpp"

// Compares the decoder's losses with the formulas written out, in f64 and f32.

namespace headgate::models {
namespace {

template <typename T>
void check_losses(const DecoderConfig& config, const std::vector<double>& values, const TinyBatch& batch,
                  const PlainLosses& expected) {
  Decoder<T> decoder(config, kTinyBatch, Purpose::evaluate);
  std::vector<T> losses(batch.tokens.size());
  const double mean =
      decoder.loss(layers::as<T>(values).data(), batch.tokens.data(), batch.targets.data(), nullptr, losses.data());
  layers::expect_within("token", losses, expected.losses);
  layers::expect_within("mean", static_cast<T>(mean), expected.loss);
}

void check_config(const DecoderConfig& config) {
  const std::vector<double> values = single_precision(large_parameters(ParameterTable(config), 23));
  const TinyBatch batch(config, kTinyBatch, 29);
  const PlainLosses expected =
      losses_with_magnitudes(config, values, kTinyBatch, batch.tokens.data(), batch.targets.data());
  check_losses<double>(config, values, batch, expected);
  check_losses<float>(config, values, batch, expected);
}

class GateForward : public testing::TestWithParam<std::string> {};

TEST_P(GateForward, Layer_EveryGate_MatchesFormulas) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate(GetParam());
  check_config(config);
  config.qk_norm = QkNorm::none;
  config.norm_placement = NormPlacement::sandwich;
  check_config(config);
}

INSTANTIATE_TEST_SUITE_P(Variants, GateForward, testing::ValuesIn(items_to_test(all_variants())), name_of_variant);

TEST(DecoderForward, Logits_BiasesWindowAndScaledRope_MatchFormulas) {
  for (const DecoderConfig& config : other_families()) check_config(config);
}

TEST(DecoderForward, Logits_MixedLayers_MatchFormulas) {
  for (const DecoderConfig& config : mixed_families()) check_config(config);
  for (const DecoderConfig& config : expert_families()) check_config(config);
}

TEST(DecoderForward, Logits_ZeroCentredNormsPartialRopeSeparateEmbeddings_MatchFormulas) {
  DecoderConfig config = tiny_config();
  config.norm = layers::NormKind::zero_centred;
  config.rope_fraction = 0.7;  // of 6: RoPE rotates 4 features
  config.rope_base = 100.0;
  config.embeddings = Embeddings::separate;
  check_config(config);
  config.rope_fraction = 0.0;
  check_config(config);
}

/// Compares in f64: in f32 a rounding error may move a number to the next step of int8.
TEST(DecoderForward, Logits_ActivationsInInt8_MatchFormulas) {
  std::vector<DecoderConfig> configs = all_families();
  configs.push_back(tiny_config());
  for (const char* gate : {"g1-headwise", "g5-elementwise"}) {
    configs.push_back(tiny_config());
    configs.back().gate = layers::parse_gate(gate);
  }
  for (const DecoderConfig& config : configs) {
    const std::vector<double> values = large_parameters(ParameterTable(config), 23);
    for (const auto& [rounding, word] : Words<layers::ActivationRounding>::kAll) {
      const BatchShape shape{spans_tokens(rounding) ? 1 : 2, 7};
      const TinyBatch batch(config, shape, 29);
      const auto run = [&](layers::ActivationRounding how) {
        return run_plainly(config, values.data(), shape, batch.tokens.data(), batch.targets.data(), how).losses;
      };
      Decoder<double> decoder(config, shape, Purpose::evaluate, {}, {.activations = rounding});
      std::vector<double> losses(batch.tokens.size());
      decoder.loss(values.data(), batch.tokens.data(), batch.targets.data(), nullptr, losses.data());
      const std::vector<double> expected = run(rounding);
      for (std::size_t n = 0; n < losses.size(); ++n) EXPECT_NEAR(losses[n], expected[n], 1e-9) << word << ' ' << n;
      EXPECT_NE(expected, run(layers::ActivationRounding::none)) << "rounding changes something";
    }
  }
}

}  // namespace
}  // namespace headgate::models
