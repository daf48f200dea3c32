// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/verdict.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_attention_gated.hpp"
#include "models/evaluate/first_token_attention_uniform.hpp"
#include "models/evaluate/sink_attention.hpp"
#include "models/evaluate/sink_rate.hpp"

namespace headgate::xray {
namespace {

/// Returns a model whose layers have these sink rates.
ModelXray model_of(const std::vector<std::optional<double>>& rates, double first, double rate) {
  ModelXray model;
  model.config.layers = static_cast<std::int64_t>(rates.size());
  metrics::Report& report = model.evaluation.report;
  for (const std::optional<double>& of_layer : rates) report.layers.emplace_back().set(metrics::kSinkRate, of_layer);
  report.overall.set(metrics::kFirstTokenAttention, first);
  report.overall.set(metrics::kFirstTokenAttentionUniform, 0.004);
  report.overall.set(metrics::kSinkRate, rate);
  model.largest_activation = {12345.6, 4, 0, 507};
  return model;
}

TEST(Verdict, Sinks_FromALayerOn_AreNamed) {
  EXPECT_EQ(verdict(model_of({0.0, 0.1, 0.6, 0.4, 0.9}, 0.298, 0.51)),
            "Sinks from layer 2 on: 51% of the heads give more than 30% of their attention to the first token. It gets "
            "30% of all attention; if heads looked at all tokens alike, it would get 0.4%. The largest activation is "
            "12346, at token 0, channel 507, after layer 4.");
}

TEST(Verdict, Sinks_Elsewhere_AreNamed) {
  const auto where = [](const std::vector<std::optional<double>>& rates) {
    const std::string text = verdict(model_of(rates, 0.2, 0.2));
    return text.substr(0, text.find(':'));
  };
  EXPECT_EQ(where({0.0, 0.9, 0.0, 0.0}), "Sinks in layer 1");
  EXPECT_EQ(where({0.1, 0.2, 0.0, 0.3}), "Sinks in layers 0 to 3");
  EXPECT_EQ(where({1.0}), "Sinks in layer 0");
  EXPECT_EQ(where({std::nullopt, 0.0, std::nullopt, 0.7}), "Sinks in layer 3") << "others have no figure of sinks";
  EXPECT_EQ(where({std::nullopt, 0.5, std::nullopt, 0.7}), "Sinks from layer 1 on");
}

TEST(Verdict, Model_WithoutSinks_SaysSo) {
  ModelXray model = model_of({0.0, 0.0}, 0.03, 0.0);
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
  ModelXray model = model_of({std::nullopt}, 0.0, 0.0);
  model.evaluation.report.overall = {};
  EXPECT_TRUE(verdict(model).starts_with("Sinks are not measured: windows hide the first token")) << verdict(model);
  model.largest_activation = {std::numeric_limits<double>::quiet_NaN(), 0, 3, 1};
  EXPECT_TRUE(verdict(model).ends_with(" The activations are not finite from layer 0, token 3 on.")) << verdict(model);
  model.config.layer_types = {models::LayerType::linear_attention};
  EXPECT_TRUE(verdict(model).starts_with("Linear attention has no softmax")) << verdict(model);
}

}  // namespace
}  // namespace headgate::xray
