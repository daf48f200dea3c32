// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/verdict.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_attention_gated.hpp"
#include "models/evaluate/first_token_attention_uniform.hpp"
#include "models/evaluate/mean.hpp"
#include "models/evaluate/sink_attention.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "models/io/units.hpp"

namespace headgate::xray {
namespace {

/// Holds 1 for each head with a sink and 0 for each other head, or nothing in a layer without the figure.
using SinksOfLayers = std::vector<std::vector<std::optional<double>>>;

/// Returns a model with these heads. The figures of layers and model are means, as the evaluator computes them.
ModelXray model_of_heads(const SinksOfLayers& sinks, double first) {
  ModelXray model;
  model.config.layers = static_cast<std::int64_t>(sinks.size());
  metrics::Report& report = model.evaluation.report;
  metrics::Mean overall;
  for (const auto& heads : sinks) {
    metrics::Mean of_layer;
    report.heads.emplace_back();
    for (const std::optional<double>& sink : heads) {
      report.heads.back().emplace_back().set(metrics::kSinkRate, sink);
      if (sink) of_layer.add(*sink);
    }
    report.layers.emplace_back().set(metrics::kSinkRate, of_layer.maybe());
    if (const auto rate = of_layer.maybe()) overall.add(*rate);
  }
  report.overall.set(metrics::kFirstTokenAttention, first);
  report.overall.set(metrics::kFirstTokenAttentionUniform, 0.004);
  report.overall.set(metrics::kSinkRate, overall.value());
  model.largest_activation = {12345.6, 4, 0, 507};
  return model;
}

/// Returns a model whose layers have ten heads each, and sinks in these shares of them.
ModelXray model_of(const std::vector<std::optional<double>>& rates, double first) {
  SinksOfLayers sinks;
  for (const std::optional<double>& rate : rates) {
    sinks.emplace_back(10, rate ? std::optional(0.0) : std::nullopt);
    std::fill_n(sinks.back().begin(), std::lround(10.0 * rate.value_or(0.0)), 1.0);
  }
  return model_of_heads(sinks, first);
}

std::string sentence_of_sinks(const ModelXray& model) {
  const std::string text = verdict(model);
  return text.substr(0, text.find(" give"));
}

TEST(Verdict, Sinks_FromALayerOn_AreNamed) {
  EXPECT_EQ(verdict(model_of({0.0, 0.1, 0.6, 0.4, 0.9}, 0.298)),
            "Sinks from layer 2 on: 40% of the heads give more than 30% of their attention to the first token. It gets "
            "30% of all attention; if heads looked at all tokens alike, it would get 0.4%. The largest activation is "
            "12346, at token 0, channel 507, after layer 4.");
}

TEST(Verdict, Sinks_Elsewhere_AreNamed) {
  const auto where = [](const std::vector<std::optional<double>>& rates) {
    const std::string text = verdict(model_of(rates, 0.2));
    return text.substr(0, text.find(':'));
  };
  EXPECT_EQ(where({0.0, 0.9, 0.0, 0.0}), "Sinks in layer 1");
  EXPECT_EQ(where({0.1, 0.2, 0.0, 0.3}), "Sinks in layers 0 to 3");
  EXPECT_EQ(where({1.0}), "Sinks in layer 0");
  EXPECT_EQ(where({std::nullopt, 0.0, std::nullopt, 0.7}), "Sinks in layer 3") << "others have no figure of sinks";
  EXPECT_EQ(where({std::nullopt, 0.5, std::nullopt, 0.7}), "Sinks from layer 1 on");
}

TEST(Verdict, Sinks_LayersOfOtherHeadCounts_AreCountedByHead) {
  EXPECT_EQ(sentence_of_sinks(model_of_heads({{1.0, 1.0}, SinksOfLayers::value_type(8, 0.0)}, 0.2)),
            "Sinks in layer 0: 20% of the heads");
  std::mt19937 rng(11);
  for (int run = 0; run < 500; ++run) {
    SinksOfLayers sinks(2 + rng() % 4);
    for (auto& heads : sinks) {
      const bool none = rng() % 5 == 0;
      const double rate = std::array{0.0, 0.3, 0.6, 1.0}[rng() % 4];
      heads.resize(std::array{1, 2, 8, 32}[rng() % 4]);
      for (auto& sink : heads) {
        const double has = std::bernoulli_distribution(rate)(rng) ? 1.0 : 0.0;
        if (!none) sink = has;
      }
    }
    sinks.front().assign(3, 1.0);
    // Counts the heads from each layer on: those with sinks and all.
    std::vector<std::size_t> layers;
    std::vector<std::array<int, 2>> own, rest;
    for (std::size_t layer = 0; layer < sinks.size(); ++layer) {
      if (!sinks[layer].front()) continue;
      const auto with = static_cast<int>(std::count(sinks[layer].begin(), sinks[layer].end(), 1.0));
      const auto all = static_cast<int>(sinks[layer].size());
      layers.push_back(layer);
      own.push_back({with, all});
      rest.push_back({0, 0});
      for (auto& [sum, count] : rest) sum += with, count += all;
    }
    std::string where;
    for (std::size_t i = 0; i + 1 < layers.size() && where.empty(); ++i) {
      const bool most = 2 * own[i][0] >= own[i][1] && 2 * rest[i][0] >= rest[i][1];
      if (most) where = fmt::format("Sinks from layer {} on", layers[i]);
    }
    const std::string text = sentence_of_sinks(model_of_heads(sinks, 0.2));
    if (where.empty()) {
      EXPECT_TRUE(text.starts_with("Sinks in layer")) << text;
    } else {
      EXPECT_TRUE(text.starts_with(where + ":")) << text << " for " << where;
    }
    const double share = static_cast<double>(rest[0][0]) / rest[0][1];
    EXPECT_TRUE(text.ends_with(": " + console::percent_text(share) + " of the heads")) << text << " for " << share;
  }
}

TEST(Verdict, Model_WithoutSinks_SaysSo) {
  ModelXray model = model_of({0.0, 0.0}, 0.03);
  model.largest_activation = {2.5, 1, 17, 5};
  model.evaluation.report.overall.set(metrics::kFirstTokenAttentionGated, 0.001);
  model.evaluation.report.overall.set(metrics::kSinkAttention, 0.4);
  EXPECT_EQ(
      verdict(model),
      "No sinks: no head gives more than 30% of its attention to the first token. It gets 3% of all attention; if "
      "heads looked at all tokens alike, it would get 0.4%. 0.1% passes the gate. 40% of the attention goes to the "
      "sink logits of the heads. The largest activation is 2.50, at token 17, channel 5, after layer 1.");
}

TEST(Verdict, Figures_Missing_AreExplained) {
  ModelXray model = model_of({std::nullopt}, 0.0);
  model.evaluation.report.overall = {};
  EXPECT_TRUE(verdict(model).starts_with("Sinks are not measured: windows hide the first token")) << verdict(model);
  model.largest_activation = {std::numeric_limits<double>::quiet_NaN(), 0, 3, 1};
  EXPECT_TRUE(verdict(model).ends_with(" The activations are not finite from layer 0, token 3 on.")) << verdict(model);
  model.config.layer_types = {models::LayerType::linear_attention};
  EXPECT_TRUE(verdict(model).starts_with("Linear attention has no softmax")) << verdict(model);
}

}  // namespace
}  // namespace headgate::xray
