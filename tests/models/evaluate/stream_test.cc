// SPDX-License-Identifier: Apache-2.0
// Tests figures of the residual stream with more tokens than ranges of tokens, and of linear attention without decay.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/evaluate/decay.hpp"
#include "models/evaluate/int8_hidden.hpp"
#include "models/evaluate/kurtosis.hpp"
#include "models/evaluate/massive_activation.hpp"

namespace headgate::metrics {
namespace {

constexpr std::int64_t kSequences = 3, kTokens = 50, kChannels = 2;

/// Gives `stream`, (kSequences · kTokens, kChannels), as a layer's output to the sums of a metric, and returns them.
template <template <typename> class SumsOf>
Values values_of(const std::vector<double>& stream, int threads = 3) {
  models::DecoderConfig config;
  config.layers = 1;
  models::LayerView<double> view;
  view.shape = {kSequences, kTokens};
  view.seq_len = kTokens;
  view.output = {stream.data(), {kSequences * kTokens, kChannels}};
  view.sequence_output = view.output;
  const ExecutionContext context = resolved({.threads = threads});
  SumsOf<double> sums(config);
  sums.add_layer(LayerSample<double>{view, context, {}, {}, {}, {}, {}});
  return sums.of_layer(0);
}

std::vector<double> numbers() {
  std::vector<double> stream(kSequences * kTokens * kChannels);
  for (std::size_t n = 0; n < stream.size(); ++n) stream[n] = std::sin(static_cast<double>(n));
  return stream;
}

TEST(ResidualStream, MassiveActivation_AnyEntry_IsFoundWithItsPlace) {
  for (const std::size_t at : {0U, 3U, 101U, 202U, 299U}) {
    std::vector<double> stream = numbers();
    stream[at] = -7.0;
    const auto token = static_cast<double>(at / kChannels % kTokens), channel = static_cast<double>(at % kChannels);
    EXPECT_EQ(values_of<MassiveActivationSums>(stream), (Values{7.0, token, channel}));
    stream.back() = 7.0;  // the first of equal entries stays
    EXPECT_EQ(values_of<MassiveActivationSums>(stream), (Values{7.0, token, channel}));
  }
}

TEST(LinearAttention, HalfLife_NothingDecays_IsInfinite) {
  models::DecoderConfig config;
  config.layers = 1;
  config.layer_types = {models::LayerType::linear_attention};
  config.linear.value_heads = 1;
  models::LayerView<double> view;
  view.shape = {1, kTokens};
  const ExecutionContext context = resolved({});
  const double decay = 1.0, half_life = std::numeric_limits<double>::infinity();
  LayerSample<double> sample{view, context, {}, {}, {}, {}, {}};
  sample.rule.mean_decay = {&decay, {1, 1}};
  sample.rule.half_life = {&half_life, {1, 1}};
  DecaySums<double> sums(config);
  sums.add_layer(sample);
  EXPECT_EQ(sums.of_layer(0), (Values{1.0, half_life}));
}

TEST(ResidualStream, Kurtosis_EveryEntry_Counts) {
  const std::vector<double> stream = numbers();
  std::vector<double> rest;  // without the first token of each sequence
  for (std::size_t n = 0; n < stream.size(); ++n) {
    if (n / kChannels % kTokens != 0) rest.push_back(stream[n]);
  }
  const auto plain = [](const std::vector<double>& x) {
    double mean = 0, second = 0, fourth = 0;
    for (const double value : x) mean += value / static_cast<double>(x.size());
    for (const double value : x) {
      second += std::pow(value - mean, 2);
      fourth += std::pow(value - mean, 4);
    }
    return static_cast<double>(x.size()) * fourth / (second * second);
  };
  const Values found = values_of<KurtosisSums>(stream);
  EXPECT_NEAR(found[0].value(), plain(stream), 1e-12);
  EXPECT_NEAR(found[1].value(), plain(rest), 1e-12);
}

TEST(ResidualStream, Kurtosis_OfEqualNumbers_IsEmpty) {
  for (const double value : {0.0, 0.7, static_cast<double>(0.1F), 1e30}) {
    const Values found = values_of<KurtosisSums>(std::vector<double>(kSequences * kTokens * kChannels, value));
    EXPECT_FALSE(found[0].has_value()) << value;
  }
}

/// The scale of a sequence is 10, so that only tens survive in it.
TEST(ResidualStream, Int8Rounding_MassiveFirstToken_TakesTheScaleOfTheOthers) {
  std::vector<double> stream(kSequences * kTokens * kChannels, 4.0);
  stream[0] = stream[100] = stream[200] = 1270.0;
  const Values found = values_of<Int8HiddenSums>(stream);
  const double others = 2.0 * kTokens - 1.0;  // numbers of a sequence that are rounded to 0
  EXPECT_NEAR(found[0].value(), std::sqrt(16.0 * others / (1270.0 * 1270.0 + 16.0 * others)), 1e-12);
  EXPECT_NEAR(found[1].value(), 0.0, 1e-12) << "without the first token, 4 is the largest";
  EXPECT_NEAR(found[2].value(), std::sqrt(16.0 / (1270.0 * 1270.0 + 16.0 * others)), 1e-12) << "4 of the first token";
  EXPECT_NEAR(found[3].value(), 0.0, 1e-12);
}

TEST(ResidualStream, Int8Rounding_AnyNumberOfThreads_IsBitwiseIdentical) {
  EXPECT_EQ(values_of<Int8HiddenSums>(numbers(), 1), values_of<Int8HiddenSums>(numbers(), 5));
}

TEST(ResidualStream, Int8Rounding_ZerosAndNotFinite_AreEmptyAndNaN) {
  std::vector<double> stream(kSequences * kTokens * kChannels, 0.0);
  for (const auto& value : values_of<Int8HiddenSums>(stream)) EXPECT_FALSE(value.has_value());
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    stream.assign(stream.size(), 1.0);
    stream[50] = bad;
    for (const auto& value : values_of<Int8HiddenSums>(stream)) EXPECT_TRUE(std::isnan(value.value())) << bad;
  }
}

TEST(ResidualStream, LargestEntry_NaN_StaysLargest) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(exceeds(kNan, 1.0));
  EXPECT_TRUE(exceeds(2.0, 1.0));
  EXPECT_FALSE(exceeds(1.0, 1.0));
  EXPECT_FALSE(exceeds(2.0, kNan));
  EXPECT_FALSE(exceeds(kNan, kNan));
}

}  // namespace
}  // namespace headgate::metrics
