// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "models/tiny.hpp"

// The gradients of whole decoders against central differences in f64, tensor by tensor.

namespace headgate::models {
namespace {

constexpr double kStep = 2e-5;
constexpr std::int64_t kEntries = 6;  // of a tensor, spread over it

/// Roundings of a loss of order 1 over kStep, and what Richardson's extrapolation leaves, of order kStep⁴.
double tolerance(double slope) { return 1e-8 + 1e-7 * std::abs(slope); }

class Checked {
 public:
  explicit Checked(const DecoderConfig& config)
      : decoder_(config, kTinyBatch, Purpose::train),
        batch_(config, kTinyBatch, 5),
        values_(large_parameters(decoder_.table(), 17)),
        gradients_(values_.size(), 0.0) {
    decoder_.loss_and_gradients(gradients_.data(), values_.data(), batch_.tokens.data(), batch_.targets.data());
  }

  const ParameterTable& table() const { return decoder_.table(); }
  double gradient(std::int64_t at) const { return gradients_[static_cast<std::size_t>(at)]; }

  /// Slope of the loss along `direction`, which maps a parameter's place to its share: central differences at two
  /// steps, extrapolated.
  double slope(const std::function<double(std::size_t)>& direction) {
    return (4.0 * difference(direction, kStep / 2.0) - difference(direction, kStep)) / 3.0;
  }
  double gradient_along(const std::function<double(std::size_t)>& direction) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < gradients_.size(); ++i) sum += gradients_[i] * direction(i);
    return sum;
  }

 private:
  double difference(const std::function<double(std::size_t)>& direction, double step) {
    return (loss_at(direction, step) - loss_at(direction, -step)) / (2.0 * step);
  }
  double loss_at(const std::function<double(std::size_t)>& direction, double step) {
    std::vector<double> moved = values_;
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction(i);
    return decoder_.loss(moved.data(), batch_.tokens.data(), batch_.targets.data());
  }

  Decoder<double> decoder_;
  TinyBatch batch_;
  std::vector<double> values_, gradients_;
};

void check_entries(Checked& checked, const Parameter& parameter) {
  const std::int64_t stride = std::max<std::int64_t>(1, parameter.count / kEntries);
  for (std::int64_t i = 0; i < parameter.count; i += stride) {
    const auto place = static_cast<std::size_t>(parameter.offset + i);
    const double expected = checked.slope([place](std::size_t at) { return at == place ? 1.0 : 0.0; });
    ASSERT_NEAR(checked.gradient(parameter.offset + i), expected, tolerance(expected)) << parameter.name << " at " << i;
  }
}

/// All entries of a tensor at once, along ±1 drawn at random.
void check_direction(Checked& checked, const Parameter& parameter) {
  Draws draws(static_cast<std::uint64_t>(parameter.offset));
  std::vector<double> signs;
  for (std::int64_t i = 0; i < parameter.count; ++i) signs.push_back(draws.bits() % 2 == 0 ? 1.0 : -1.0);
  const auto first = static_cast<std::size_t>(parameter.offset);
  const auto direction = [&](std::size_t at) {
    return at >= first && at - first < signs.size() ? signs[at - first] : 0.0;
  };
  const double expected = checked.slope(direction);
  ASSERT_NEAR(checked.gradient_along(direction), expected, tolerance(expected)) << parameter.name;
}

void check_config(const DecoderConfig& config) {
  Checked checked(config);
  for (const Parameter& parameter : checked.table().entries()) {
    double largest = 0.0;
    for (std::int64_t i = 0; i < parameter.count; ++i) {
      largest = std::max(largest, std::abs(checked.gradient(parameter.offset + i)));
    }
    EXPECT_GT(largest, 1e-6) << parameter.name << " has no gradient";
    check_entries(checked, parameter);
    check_direction(checked, parameter);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class GateGradients : public testing::TestWithParam<std::string> {};

/// Without QK-norm, which takes a headwise gate's effect out of q and k.
TEST_P(GateGradients, MatchDifferences) {
  DecoderConfig config = tiny_config();
  config.qk_norm = QkNorm::none;
  config.gate = layers::parse_gate(GetParam());
  check_config(config);
}

TEST_P(GateGradients, MatchDifferencesInASandwichWithQkNorm) {
  DecoderConfig config = tiny_config();
  config.layers = 1;
  config.norm_placement = NormPlacement::sandwich;
  config.gate = layers::parse_gate(GetParam());
  // A norm that follows takes the effect out of one factor a head.
  const bool normed = config.gate.site >= layers::GateSite::g3;
  if (normed && config.gate.grain == layers::GateGrain::headwise) config.gate.op = GateOp::add;
  check_config(config);
}

INSTANTIATE_TEST_SUITE_P(Variants, GateGradients, testing::ValuesIn(all_variants()),
                         [](const testing::TestParamInfo<std::string>& variant) {
                           std::string name = variant.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(DecoderGradients, ZeroCentredNormsAndHalfOfRope) {
  DecoderConfig config = tiny_config();
  config.norm = layers::NormKind::zero_centred;
  config.rope_fraction = 0.5;
  config.rope_base = 100.0;
  check_config(config);
}

TEST(DecoderGradients, NoRopeAndSeparateEmbeddings) {
  DecoderConfig config = tiny_config();
  config.rope_fraction = 0.0;
  config.embeddings = Embeddings::separate;
  check_config(config);
}

TEST(DecoderGradients, OneHeadOneLayerOneFeature) {
  DecoderConfig config = tiny_config();
  config.layers = 1;
  config.heads = config.kv_heads = 1;
  config.head_dim = 1;
  config.qk_norm = QkNorm::none;
  config.gate = layers::parse_gate("g1-headwise");
  check_config(config);
}

TEST(DecoderGradients, AddUpOverBatchesByTheirScale) {
  const DecoderConfig config = tiny_config();
  Decoder<double> decoder(config, kTinyBatch, Purpose::train);
  const std::vector<double> values = large_parameters(decoder.table(), 3);
  const TinyBatch one(config, kTinyBatch, 1), two(config, kTinyBatch, 2);
  const auto total = static_cast<std::size_t>(decoder.table().total());
  std::vector<double> sum(total, 0.0), first(total, 0.0), second(total, 0.0);
  const auto add = [&](std::vector<double>& gradients, const TinyBatch& batch, double scale) {
    decoder.loss_and_gradients(gradients.data(), values.data(), batch.tokens.data(), batch.targets.data(), scale);
  };
  add(first, one, 1.0);
  add(second, two, 1.0);
  add(sum, one, 0.5);
  add(sum, two, 0.25);
  for (std::size_t i = 0; i < total; ++i) {
    ASSERT_NEAR(sum[i], 0.5 * first[i] + 0.25 * second[i], 1e-13 * (1.0 + std::abs(sum[i]))) << i;
  }
}

}  // namespace
}  // namespace headgate::models
