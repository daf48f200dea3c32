// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/tiny.hpp"
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

}  // namespace
}  // namespace headgate::models
