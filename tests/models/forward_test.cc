// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "models/plain_decoder.hpp"
#include "models/tiny.hpp"

// The decoder's losses against the formulas written out.

namespace headgate::models {
namespace {

void check_config(const DecoderConfig& config) {
  Decoder<double> decoder(config, kTinyBatch, Purpose::evaluate);
  const std::vector<double> values = large_parameters(decoder.table(), 23);
  TinyBatch batch(config, kTinyBatch, 29);
  for (std::int32_t& target : batch.targets) target = std::max(target, 0);
  const PlainRun expected = run_plainly(config, values.data(), kTinyBatch, batch.tokens.data(), batch.targets.data());
  std::vector<double> losses(batch.tokens.size());
  const double mean = decoder.loss(values.data(), batch.tokens.data(), batch.targets.data(), nullptr, losses.data());
  double sum = 0.0;
  for (std::size_t n = 0; n < losses.size(); ++n) {
    ASSERT_NEAR(losses[n], expected.losses[n], 1e-11 * (1.0 + expected.losses[n])) << "token " << n;
    sum += expected.losses[n];
  }
  EXPECT_NEAR(mean, sum / static_cast<double>(losses.size()), 1e-11 * (1.0 + mean));
}

class GateForward : public testing::TestWithParam<std::string> {};

TEST_P(GateForward, MatchesFormulas) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate(GetParam());
  check_config(config);
  config.qk_norm = QkNorm::none;
  config.norm_placement = NormPlacement::sandwich;
  check_config(config);
}

INSTANTIATE_TEST_SUITE_P(Variants, GateForward, testing::ValuesIn(all_variants()),
                         [](const testing::TestParamInfo<std::string>& variant) {
                           std::string name = variant.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(DecoderForward, ZeroCentredNormsHalfOfRopeSeparateEmbeddings) {
  DecoderConfig config = tiny_config();
  config.norm = layers::NormKind::zero_centred;
  config.rope_fraction = 0.7;  // of 6: 4 features turn
  config.rope_base = 100.0;
  config.embeddings = Embeddings::separate;
  check_config(config);
  config.rope_fraction = 0.0;
  check_config(config);
}

}  // namespace
}  // namespace headgate::models
