// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/decoder/decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/decoder/weights.hpp"
#include "support/test_runs.hpp"

// Compares heads whose outputs are replaced with models whose parameters give the same outputs.

namespace headgate::models {
namespace {

constexpr std::int64_t N = kTinyBatch.batch * kTinyBatch.seq;

/// Holds a model, its batch, and a buffer for the attention output before the gate.
struct Case {
  explicit Case(const DecoderConfig& config_in)
      : config(config_in),
        decoder(config, kTinyBatch, Purpose::evaluate),
        parameters(large_parameters(decoder.table(), 19)),
        batch(config, kTinyBatch, 4),
        ungated(static_cast<std::size_t>(N * config.heads * config.head_dim)) {}

  double loss(const std::vector<double>& w) {
    return decoder.loss(w.data(), batch.tokens.data(), batch.targets.data());
  }
  double loss_with(const LayerOverride<double>& replaced) {
    return decoder.loss_with(replaced, parameters.data(), batch.tokens.data(), batch.targets.data());
  }
  LayerOverride<double> closed(std::int64_t layer, std::int64_t first, std::int64_t count) {
    LayerOverride<double> out;
    out.layer = layer;
    out.heads.first = first;
    out.heads.count = count;
    return out;
  }
  LayerOverride<double> scaled(std::int64_t layer, std::int64_t first, const std::vector<double>& factors) {
    const std::int64_t D = config.head_dim;
    LayerOverride<double> out = closed(layer, first, static_cast<std::int64_t>(factors.size()) / D);
    out.heads.factors = view_of(factors, out.heads.count, D);
    out.heads.ungated = view_of(ungated, N, config.heads, D);
    return out;
  }

  DecoderConfig config;
  Decoder<double> decoder;
  std::vector<double> parameters;
  TinyBatch batch;
  std::vector<double> ungated;
};

DecoderConfig config_of(const std::string& gate) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate(gate);
  return config;
}

/// Returns the loss with the columns of W_o that read these heads set to 0.
double loss_without(Case& model, std::int64_t layer, std::int64_t first, std::int64_t count) {
  const std::int64_t D = model.config.head_dim;
  std::vector<double> w = model.parameters;
  const View<double, 2> out = WeightLayout(model.config).layer(layer, w.data()).attention.out;
  for (std::int64_t c = 0; c < out.shape[0]; ++c) {
    for (std::int64_t i = first * D; i < (first + count) * D; ++i) out(c, i) = 0.0;
  }
  return model.loss(w);
}

void expect_closed_is_without(Case& model) {
  const std::int64_t heads = model.config.heads;
  for (std::int64_t layer = 0; layer < model.config.layers; ++layer) {
    for (std::int64_t h = 0; h < heads; ++h) {
      EXPECT_NEAR(model.loss_with(model.closed(layer, h, 1)), loss_without(model, layer, h, 1), 1e-12);
    }
    const double whole = model.loss_with(model.closed(layer, 0, heads));
    EXPECT_NEAR(whole, loss_without(model, layer, 0, heads), 1e-12);
    EXPECT_GT(std::abs(whole - model.loss(model.parameters)), 1e-6);
  }
}

class EveryVariant : public testing::TestWithParam<std::string> {};

TEST_P(EveryVariant, Head_FactorZero_IsNotRead) {
  Case model(config_of(GetParam()));
  expect_closed_is_without(model);
}

INSTANTIATE_TEST_SUITE_P(Gates, EveryVariant, testing::ValuesIn(items_to_test(all_variants())), name_of_variant);

TEST(HeadOverride, Head_FactorZeroInOtherFamilies_IsNotRead) {
  for (const DecoderConfig& config : other_families()) {
    Case model(config);
    expect_closed_is_without(model);
  }
}

/// Returns the loss with these factors as a head's gate at every token: the logits are its bias only.
double loss_of_gate(Case& model, std::int64_t layer, std::int64_t head, const std::vector<double>& factors) {
  std::vector<double> w = model.parameters;
  const auto weights = WeightLayout(model.config).layer(layer, w.data()).attention;
  const auto features = static_cast<std::int64_t>(factors.size());  // of a head's gate
  const std::int64_t first = model.config.heads * model.config.head_dim;
  for (std::int64_t f = 0; f < features; ++f) {
    const std::int64_t row = head * features + f;
    for (std::int64_t c = 0; c < model.config.dim; ++c) weights.in(first + row, c) = 0.0;
    const double g = factors[static_cast<std::size_t>(f)];
    weights.gate_bias(row) = g == 1.0 ? 100.0 : std::log(g / (1.0 - g));
  }
  return model.loss(w);
}

TEST(HeadOverride, Factors_AnyValues_EqualAGateOfTheseValues) {
  for (const char* gate : {"g1-headwise-bias", "g1-elementwise-bias"}) {
    Case model(config_of(gate));
    const std::int64_t D = model.config.head_dim;
    const bool headwise = model.config.gate.grain == layers::GateGrain::headwise;
    for (std::int64_t layer = 0; layer < model.config.layers; ++layer) {
      for (std::int64_t h = 0; h < model.config.heads; ++h) {
        for (const bool open : {true, false}) {
          std::vector<double> gates;  // gates of this head
          for (std::int64_t f = 0; f < (headwise ? 1 : D); ++f) {
            gates.push_back(open ? 1.0 : 0.1 * static_cast<double>(1 + h + f % 5));
          }
          std::vector<double> factors = gates;
          factors.resize(static_cast<std::size_t>(D), gates.front());
          EXPECT_NEAR(model.loss_with(model.scaled(layer, h, factors)), loss_of_gate(model, layer, h, gates), 1e-12)
              << gate << ", layer " << layer << ", head " << h;
        }
      }
    }
  }
}

TEST(HeadOverride, OutputBeforeTheGate_FactorsOfOne_IsThatOfAModelWithoutAGate) {
  for (const char* gate :
       {"g1-headwise", "g1-elementwise-silu", "g1-head_shared", "g1-elementwise-sigmoid2-parameter"}) {
    Case model(config_of(gate));
    const std::vector<double> ones(static_cast<std::size_t>(model.config.heads * model.config.head_dim), 1.0);
    std::vector<double> w = model.parameters;
    EXPECT_GT(std::abs(model.loss_with(model.scaled(0, 0, ones)) - model.loss(w)), 1e-6) << gate;
    // Builds a model without a gate whose other parameters are the same, by name.
    DecoderConfig plain_config = model.config;
    plain_config.layers = 1;
    DecoderConfig gated_config = plain_config;
    plain_config.gate = {};
    Case plain(plain_config), gated(gated_config);
    for (const Parameter& p : plain.decoder.table().entries()) {
      const Parameter* same = gated.decoder.table().find(p.name);
      ASSERT_NE(same, nullptr) << p.name;
      std::copy_n(gated.parameters.data() + same->offset, p.count, plain.parameters.data() + p.offset);
    }
    EXPECT_NEAR(gated.loss_with(gated.scaled(0, 0, ones)), plain.loss(plain.parameters), 1e-12) << gate;
  }
}

/// Records the residual stream after each layer.
class Streams : public LayerObserver<double> {
 public:
  Taps taps() const override { return {Tap::output}; }
  void after_layer(const LayerView<double>& view) override {
    kept.emplace_back(view.output.data, view.output.data + view.output.count());
  }
  std::vector<std::vector<double>> kept;
};

TEST(HeadOverride, Pass_StartsAtALayer_HasTheSameLoss) {
  for (const char* gate : {"none", "g1-elementwise", "g5-headwise"}) {
    Case model(config_of(gate));
    Streams streams;
    model.decoder.loss(model.parameters.data(), model.batch.tokens.data(), model.batch.targets.data(), &streams);
    LayerOverride<double> replaced = model.closed(1, 2, 1);
    const double whole = model.loss_with(replaced);
    replaced.input = view_of(streams.kept[0], N, model.config.dim);
    EXPECT_EQ(model.loss_with(replaced), whole) << gate;
    model.loss_with(model.closed(0, 0, 4));  // memory left by another pass has no effect
    EXPECT_EQ(model.loss_with(replaced), whole) << gate;
  }
}

TEST(HeadOverride, Override_OnePass_DoesNotChangeLaterPasses) {
  Case model(config_of("g1-elementwise"));
  const double before = model.loss(model.parameters);
  model.loss_with(model.closed(1, 0, 2));
  EXPECT_EQ(model.loss(model.parameters), before);
}

TEST(HeadOverride, Override_HeadOrGateThatTheModelLacks_IsRefused) {
  Case model(config_of("g1-headwise"));
  const std::vector<double> one(static_cast<std::size_t>(model.config.head_dim), 1.0);
  EXPECT_THROW(model.loss_with(model.closed(-1, 0, 1)), Error);
  EXPECT_THROW(model.loss_with(model.closed(2, 0, 1)), Error);
  EXPECT_THROW(model.loss_with(model.closed(0, -1, 1)), Error);
  EXPECT_THROW(model.loss_with(model.closed(0, 3, 2)), Error);
  EXPECT_THROW(model.loss_with(model.closed(0, 0, 0)), Error);
  LayerOverride<double> no_memory = model.scaled(0, 0, one);
  no_memory.heads.ungated = {};
  EXPECT_THROW(model.loss_with(no_memory), Error);
  const std::vector<double> stream(static_cast<std::size_t>((N - 1) * model.config.dim));
  LayerOverride<double> short_input = model.closed(1, 0, 1);
  short_input.input = view_of(stream, N - 1, model.config.dim);
  EXPECT_THROW(model.loss_with(short_input), Error);
  for (const char* gate : {"none", "g1-headwise-add", "g2", "g5"}) {
    Case other(config_of(gate));
    EXPECT_THROW(other.loss_with(other.scaled(0, 0, one)), Error) << gate;
  }
}

}  // namespace
}  // namespace headgate::models
