// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/evaluator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_value_norm_ratio.hpp"
#include "models/evaluate/gate_below.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/gate_mean.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/massive_activation.hpp"
#include "models/evaluate/plain_metrics.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "models/layers/gate_variant.hpp"

// Compares figures gathered without a T×S buffer with plain loops over the whole attention matrix.

namespace headgate::metrics {
namespace {

using models::Decoder;
using models::DecoderConfig;
using models::kTinyBatch;
using models::Purpose;
using models::TinyBatch;

constexpr double kClose = 1e-11;

struct Evaluated {
  PlainBatches plain;
  Report report;
};

DecoderConfig config_with(const std::string& gate) {
  DecoderConfig config = models::tiny_config();
  config.gate = layers::parse_gate(gate);
  return config;
}

/// Marks every third token of the vocabulary.
std::vector<std::uint8_t> triggers_of(const TinyBatch& batch) {
  std::vector<std::uint8_t> out;
  for (const std::int32_t token : batch.tokens) out.push_back(token % 3 == 0 ? 1 : 0);
  return out;
}

/// Evaluates two batches with the evaluator and with the formulas. If a part is given, the evaluator gets one sequence
/// at a time, in parts of so many tokens.
Evaluated evaluate(const DecoderConfig& config, bool with_triggers, const MetricList& metrics = all_metrics(),
                   std::int64_t part = 0) {
  Evaluated out;
  out.plain.config = config;
  const models::BatchShape shape = part == 0 ? kTinyBatch : models::BatchShape{1, kTinyBatch.seq};
  Decoder<double> decoder(config, shape, Purpose::evaluate, {}, parts_of(part, metrics));
  const std::vector<double> values = models::large_parameters(decoder.table(), 41);
  Evaluator<double> evaluator(decoder, metrics);
  for (const std::uint64_t seed : {1U, 2U}) {
    TinyBatch batch(config, kTinyBatch, seed);
    for (std::int32_t& target : batch.targets) target = std::max(target, 0);
    out.plain.runs.push_back(
        models::run_plainly(config, values.data(), kTinyBatch, batch.tokens.data(), batch.targets.data()));
    out.plain.triggers.push_back(triggers_of(batch));
    for (std::int64_t b = 0; b < kTinyBatch.batch; b += shape.batch) {
      const std::int64_t at = b * shape.seq;
      evaluator.add(values.data(), batch.tokens.data() + at, batch.targets.data() + at,
                    with_triggers ? out.plain.triggers.back().data() + at : nullptr);
    }
  }
  out.report = evaluator.report();
  return out;
}

Evaluated evaluate(const std::string& gate, bool with_triggers, const MetricList& metrics = all_metrics()) {
  return evaluate(config_with(gate), with_triggers, metrics);
}

void expect_close(const FigureRow& row, const Metric& metric, const Values& wanted, const std::string& where) {
  ASSERT_EQ(wanted.size(), metric.figures.size()) << metric.name;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Figure& figure = metric.figures[i];
    const std::optional<double> got = row.find(figure);
    ASSERT_EQ(got.has_value(), wanted[i].has_value()) << figure.key << where;
    if (!got) continue;
    // An absolute error of x is a relative error of e^x.
    const double slack = figure.key == kPerplexity.key ? 100.0 : 1.0;
    EXPECT_NEAR(*got, *wanted[i], slack * kClose * std::max(1.0, std::abs(*wanted[i]))) << figure.key << where;
  }
}

/// Averages each value over the layers that have it; null if none has. The values of massive activations are those of
/// the layer with the largest.
Values over_layers(const Metric& metric, const std::vector<Values>& layers) {
  if (&metric == &kMassiveActivationMetric) {
    return *std::max_element(layers.begin(), layers.end(),
                             [](const Values& a, const Values& b) { return *a[0] < *b[0]; });
  }
  Values out(layers.front().size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    double sum = 0.0, having = 0.0;
    for (const Values& layer : layers) {
      if (!layer[i]) continue;
      sum += *layer[i];
      having += 1.0;
    }
    if (having > 0.0) out[i] = sum / having;
  }
  return out;
}

/// Returns whether a metric has figures of a layer.
bool has_layer(const PlainBatches& plain, const Metric& metric, std::size_t layer) {
  switch (metric.layers) {
    case MetricLayers::all: return true;
    case MetricLayers::attention: return !plain.is_linear(layer);
    case MetricLayers::first_token: return plain.sees_first(layer);
    case MetricLayers::linear_attention: return plain.is_linear(layer);
  }
  return false;
}

void check_layers(const Evaluated& e, const Metric& metric, const PlainMetric& plain) {
  ASSERT_NE(plain.of_layer, nullptr) << metric.name;
  ASSERT_EQ(metric.of_heads, plain.of_head != nullptr) << metric.name;
  const Values none(metric.figures.size());
  std::vector<Values> layers;
  for (std::size_t layer = 0; layer < e.report.layers.size(); ++layer) {
    const bool has = has_layer(e.plain, metric, layer);
    layers.push_back(has ? plain.of_layer(e.plain, layer) : none);
    expect_close(e.report.layers[layer], metric, layers.back(), " of layer " + std::to_string(layer));
    ASSERT_EQ(e.report.heads[layer].size(), static_cast<std::size_t>(e.plain.heads(layer)));
    for (std::int64_t h = 0; h < e.plain.heads(layer) && metric.of_heads; ++h) {
      expect_close(e.report.heads[layer][static_cast<std::size_t>(h)], metric,
                   has ? plain.of_head(e.plain, layer, h) : none,
                   " of layer " + std::to_string(layer) + ", head " + std::to_string(h));
    }
  }
  if (metric.scope == Scope::layers_and_mean) {
    expect_close(e.report.overall, metric, over_layers(metric, layers), " of all layers");
  }
}

void check_against_plain_loops(const Evaluated& e, bool with_triggers) {
  ASSERT_EQ(e.report.backcopy.has_value(), with_triggers);
  ASSERT_EQ(e.report.layers.size(), static_cast<std::size_t>(e.plain.config.layers));
  for (const Metric* metric : e.report.metrics) {
    const auto plain = std::find_if(plain_metrics().begin(), plain_metrics().end(),
                                    [metric](const PlainMetric& row) { return row.name == metric->name; });
    ASSERT_NE(plain, plain_metrics().end()) << metric->name << " has no plain loop in plain_metrics.cc";
    if (metric->scope == Scope::model) {
      ASSERT_NE(plain->of_model, nullptr) << metric->name;
      expect_close(e.report.overall, *metric, plain->of_model(e.plain), " of the model");
    } else if (metric->scope == Scope::triggers) {
      ASSERT_NE(plain->of_model, nullptr) << metric->name;
      if (with_triggers) expect_close(*e.report.backcopy, *metric, plain->of_model(e.plain), "");
    } else {
      check_layers(e, *metric, *plain);
    }
  }
}

class EveryMetric : public testing::TestWithParam<std::string> {};

TEST_P(EveryMetric, Metric_EachOfTheRegistry_MatchesPlainLoops) {
  const Evaluated e = evaluate(GetParam(), /*with_triggers=*/false);
  check_against_plain_loops(e, /*with_triggers=*/false);
  EXPECT_DOUBLE_EQ(e.report.layers.back().at(kLossNats), e.report.overall.at(kLossNats))
      << "the model ends after its last layer";
  EXPECT_EQ(e.report.overall.find(kGateMean).has_value(), has_gate(e.plain.config.gate));
}

INSTANTIATE_TEST_SUITE_P(Gates, EveryMetric,
                         testing::Values("none", "learned_sinks", "off_by_one", "headwise", "elementwise",
                                         "head_shared", "g1-elementwise-parameter", "g2-elementwise", "g3-headwise",
                                         "g4-head_shared", "g5-elementwise", "g5-headwise-silu-add", "output_silu"));

TEST(Evaluator, Metrics_LayersThatDiffer_MatchPlainLoops) {
  for (const DecoderConfig& config : models::mixed_families()) {
    for (const bool with_triggers : {false, true}) {
      check_against_plain_loops(evaluate(config, with_triggers), with_triggers);
    }
  }
}

/// Part sizes: of one token, some that leave a shorter last part, the sequence's, and one longer than it.
constexpr std::array<std::int64_t, 5> kPartSizes{1, 2, 3, 7, 9};

TEST(Evaluator, Metrics_SequencesInParts_MatchPlainLoops) {
  for (const std::int64_t part : kPartSizes) {
    SCOPED_TRACE(testing::Message() << "parts of " << part);
    for (const DecoderConfig& config : models::mixed_families()) {
      for (const bool with_triggers : {false, true}) {
        check_against_plain_loops(evaluate(config, with_triggers, all_metrics(), part), with_triggers);
      }
    }
    for (const char* gate : {"none", "learned_sinks", "off_by_one", "head_shared", "g1-elementwise-parameter",
                             "g2-elementwise", "g5-headwise-silu-add"}) {
      check_against_plain_loops(evaluate(config_with(gate), /*with_triggers=*/true, all_metrics(), part), true);
    }
    for (const DecoderConfig& config : models::other_families()) {
      check_against_plain_loops(evaluate(config, /*with_triggers=*/false, parse_metrics({"attention_entropy"}), part),
                                false);
    }
  }
}

TEST(Evaluator, HiddenWeights_DecoderThatDoesNotKeepThem_AreRefused) {
  const DecoderConfig config = models::mixed_families().front();
  const models::BatchShape shape{1, kTinyBatch.seq};
  Decoder<double> decoder(config, shape, Purpose::evaluate, {}, {.tokens = 3});
  const std::vector<double> values = models::large_parameters(decoder.table(), 41);
  const TinyBatch batch(config, shape, 1);
  Evaluator<double> evaluator(decoder, parse_metrics({"reach"}));
  EXPECT_THROW(evaluator.add(values.data(), batch.tokens.data(), batch.targets.data()), Error);
}

TEST(Evaluator, Int8Rounding_KeysAndValuesInBf16_AreReadAsSuch) {
  const DecoderConfig config = models::tiny_config();
  const models::BatchShape shape{1, kTinyBatch.seq};
  const MetricList metrics = parse_metrics({"int8_keys,int8_values"});
  const TinyBatch batch(config, shape, 1);
  const auto figures = [&](models::ModelPrecision precision, std::int64_t part) {
    const auto decoder = models::make_decoder(config, shape, Purpose::evaluate, precision, {}, {.tokens = part});
    std::vector<float> values(static_cast<std::size_t>(decoder->table().total()));
    models::initialise(values.data(), decoder->table(), config, 1);
    Evaluator<float> evaluator(*decoder, metrics);
    evaluator.add(values.data(), batch.tokens.data(), batch.targets.data());
    return evaluator.report().overall;
  };
  const FigureRow wanted = figures(models::ModelPrecision::f32, 0);
  for (const std::int64_t part : {0, 3}) {
    const FigureRow row = figures(models::ModelPrecision::bf16, part);
    for (const FigureRow::Entry& entry : row.entries()) {
      const double near = wanted.at(*entry.figure);
      EXPECT_NEAR(entry.value.value(), near, 0.25 * near) << entry.figure->key << ", parts of " << part;
    }
  }
}

/// Whichever inputs a metric reads, it gets those of its layers.
TEST(Evaluator, MetricAlone_LayersThatDiffer_IsTheSame) {
  const DecoderConfig config = models::mixed_families().front();
  const Report all = evaluate(config, /*with_triggers=*/true).report;
  ASSERT_EQ(all.metrics, all_metrics());
  for (const Metric* metric : all_metrics()) {
    const Report alone = evaluate(config, /*with_triggers=*/true, {metric}).report;
    for (std::size_t layer = 0; layer < all.layers.size(); ++layer) {
      for (const FigureRow::Entry& entry : alone.layers[layer].entries()) {
        EXPECT_EQ(entry.value, all.layers[layer].find(*entry.figure)) << entry.figure->key;
      }
    }
  }
}

TEST(Evaluator, MetricsOfLinearAttention_ModelWithoutIt_AreLeftOut) {
  const Report report = evaluate("none", /*with_triggers=*/false).report;
  for (const Metric* metric : report.metrics) EXPECT_NE(metric->layers, MetricLayers::linear_attention) << metric->name;
}

TEST(Evaluator, Figures_OfAttention_AreNullForLinearAttention) {
  const Report report = evaluate(models::mixed_families().front(), /*with_triggers=*/false).report;
  for (const FigureRow& row : report.heads[0]) EXPECT_EQ(row.find(kFirstTokenAttention), std::nullopt);
  EXPECT_EQ(report.layers[0].find(kGateMean), std::nullopt);
  EXPECT_EQ(report.layers[1].find(kFirstTokenAttention), report.overall.find(kFirstTokenAttention));
  EXPECT_TRUE(report.layers[0].find(kMassiveActivation).has_value());
}

/// Figures on the first token are of the layers whose queries all see it.
TEST(Evaluator, FirstToken_BehindAWindow_IsLeftOut) {
  const Report report = evaluate(models::mixed_families().back(), /*with_triggers=*/true).report;
  EXPECT_EQ(report.heads[0].size(), 4U);
  EXPECT_EQ(report.heads[1].size(), 6U);
  EXPECT_TRUE(report.layers[0].find(kFirstTokenAttention).has_value());
  EXPECT_EQ(report.layers[1].find(kFirstTokenAttention), std::nullopt);
  EXPECT_TRUE(report.layers[1].find(kGateMean).has_value());
}

TEST(Evaluator, Figures_LinearAttentionAlone_AreNullOfAttention) {
  DecoderConfig config = models::mixed_families().front();
  config.layer_types.assign(2, models::LayerType::linear_attention);
  const Report report = evaluate(config, /*with_triggers=*/true).report;
  EXPECT_EQ(report.overall.find(kFirstTokenAttention), std::nullopt);
  EXPECT_EQ(report.overall.find(kGateMean), std::nullopt);
  EXPECT_EQ(report.backcopy->find(kFirstTokenValueNormRatio), std::nullopt);
  EXPECT_TRUE(report.overall.find(kLossNats).has_value());
}

TEST(AttentionEntropy, Entropy_Window_IsOfItsKeys) {
  for (const DecoderConfig& config : models::other_families()) {
    check_against_plain_loops(evaluate(config, /*with_triggers=*/false, parse_metrics({"attention_entropy"})), false);
  }
}

class ByTrigger : public testing::TestWithParam<std::string> {};

TEST_P(ByTrigger, MetricByTrigger_EachOfTheRegistry_MatchesPlainLoops) {
  const Evaluated e = evaluate(GetParam(), /*with_triggers=*/true);
  check_against_plain_loops(e, /*with_triggers=*/true);
  EXPECT_EQ(e.report.backcopy->find(kGateTrigger).has_value(), has_gate(e.plain.config.gate));
}

INSTANTIATE_TEST_SUITE_P(Gates, ByTrigger, testing::Values("none", "headwise", "elementwise", "g2-elementwise"));

TEST(Evaluator, Metric_AloneOrWithOthers_IsTheSame) {
  for (const char* gate : {"none", "head_shared", "g2-elementwise"}) {
    const Report all = evaluate(gate, /*with_triggers=*/true).report;
    for (const Metric* metric : all.metrics) {
      const Report alone = evaluate(gate, /*with_triggers=*/true, {metric}).report;
      const auto expect_same = [&](const FigureRow& got, const FigureRow& wanted, bool present) {
        ASSERT_EQ(got.entries().size(), present ? metric->figures.size() : 0U) << metric->name;
        for (const FigureRow::Entry& entry : got.entries()) {
          EXPECT_EQ(entry.value, wanted.find(*entry.figure)) << entry.figure->key << ", gate " << gate;
        }
      };
      const bool of_layers = metric->scope == Scope::layers || metric->scope == Scope::layers_and_mean;
      for (std::size_t i = 0; i < all.layers.size(); ++i) expect_same(alone.layers[i], all.layers[i], of_layers);
      expect_same(alone.overall, all.overall, metric->scope == Scope::model || metric->scope == Scope::layers_and_mean);
      expect_same(*alone.backcopy, *all.backcopy, metric->scope == Scope::triggers);
    }
  }
}

TEST(Evaluator, Triggers_SomeBatchesOnly_AreRefused) {
  const DecoderConfig config = models::tiny_config();
  Decoder<float> decoder(config, kTinyBatch, Purpose::evaluate);
  std::vector<float> values(static_cast<std::size_t>(decoder.table().total()));
  models::initialise(values.data(), decoder.table(), config, 1);
  const TinyBatch batch(config, kTinyBatch, 1);
  const std::vector<std::uint8_t> triggers(batch.tokens.size(), 1);
  Evaluator<float> evaluator(decoder, all_metrics());
  evaluator.add(values.data(), batch.tokens.data(), batch.targets.data(), triggers.data());
  EXPECT_THROW(evaluator.add(values.data(), batch.tokens.data(), batch.targets.data()), Error);
}

/// Returns the figures of a model whose second layer has a NaN in `parameter`, in the first of two batches or in the
/// second.
Report evaluate_broken(const std::string& parameter, bool in_first) {
  const DecoderConfig config = config_with("elementwise");
  Decoder<double> decoder(config, kTinyBatch, Purpose::evaluate);
  const std::vector<double> values = models::large_parameters(decoder.table(), 1);
  std::vector<double> broken = values;
  broken.at(static_cast<std::size_t>(decoder.table().find("model.layers.1." + parameter)->offset)) = std::nan("");
  const TinyBatch batch(config, kTinyBatch, 1);
  const std::vector<std::uint8_t> triggers = triggers_of(batch);
  Evaluator<double> evaluator(decoder, all_metrics());
  for (const bool first : {true, false}) {
    evaluator.add(first == in_first ? broken.data() : values.data(), batch.tokens.data(), batch.targets.data(),
                  triggers.data());
  }
  return evaluator.report();
}

/// Every figure that a NaN reaches must be NaN, whichever token, thread or batch has it.
TEST(Evaluator, Figure_NaNInTheModel_IsNaN) {
  for (const bool in_first : {true, false}) {
    for (const char* parameter : {"self_attn.q_proj.weight", "self_attn.gate_proj.weight", "mlp.down_proj.weight"}) {
      const Report got = evaluate_broken(parameter, in_first);
      EXPECT_TRUE(is_finite(got.layers[0])) << parameter;
      for (const FigureRow& row : {got.layers[1], got.overall}) {
        EXPECT_FALSE(is_finite(row)) << parameter;
        EXPECT_TRUE(std::isnan(row.at(kLossNats))) << parameter;
        EXPECT_TRUE(std::isnan(row.at(kMassiveActivation))) << parameter;
      }
    }
    const FigureRow attention = evaluate_broken("self_attn.q_proj.weight", in_first).layers[1];
    EXPECT_TRUE(std::isnan(attention.at(kFirstTokenAttention)));
    EXPECT_TRUE(std::isnan(attention.at(kSinkRate)));
    const FigureRow gate = evaluate_broken("self_attn.gate_proj.weight", in_first).layers[1];
    EXPECT_TRUE(std::isnan(gate.at(kGateMean)));
    EXPECT_TRUE(std::isnan(gate.at(kGateBelowTenth)));
    EXPECT_TRUE(std::isnan(gate.at(kGateBelowHundredth)));
    const FigureRow backcopy = evaluate_broken("self_attn.v_proj.weight", in_first).backcopy.value();
    EXPECT_TRUE(std::isnan(backcopy.at(kFirstTokenValueNormRatio)));
  }
}

/// Ignored targets do not enter any mean.
TEST(Evaluator, Figures_IgnoredTargets_LeaveThemOut) {
  const DecoderConfig config = models::tiny_config();
  Decoder<double> decoder(config, kTinyBatch, Purpose::evaluate);
  const std::vector<double> values = models::large_parameters(decoder.table(), 1);
  const TinyBatch batch(config, kTinyBatch, 1);
  Evaluator<double> evaluator(decoder, all_metrics());
  evaluator.add(values.data(), batch.tokens.data(), batch.targets.data());
  const double mean = decoder.loss(values.data(), batch.tokens.data(), batch.targets.data());
  EXPECT_NEAR(evaluator.report().overall.at(kLossNats), mean, kClose * mean);
}

/// A sequence of one token has no query that sees another token.
TEST(Evaluator, Figures_OneToken_LeaveOutWhatItLacks) {
  const DecoderConfig config = config_with("headwise");
  const models::BatchShape shape{3, 1};
  Decoder<double> decoder(config, shape, Purpose::evaluate);
  const std::vector<double> values = models::large_parameters(decoder.table(), 1);
  const std::vector<std::int32_t> tokens{1, 2, 4}, targets{5, 6, 7};
  const std::vector<std::uint8_t> triggers(3, 0);
  Evaluator<double> evaluator(decoder, all_metrics());
  evaluator.add(values.data(), tokens.data(), targets.data(), triggers.data());
  const Report report = evaluator.report();
  for (const FigureRow& row : {report.overall, report.layers[0], report.layers[1], report.backcopy.value()}) {
    EXPECT_TRUE(is_finite(row));
    for (const FigureRow::Entry& entry : row.entries()) {
      if (entry.figure->null_without_gate) continue;
      EXPECT_EQ(entry.value.has_value(), !entry.figure->null_for_one_token) << entry.figure->key;
    }
  }
}

}  // namespace
}  // namespace headgate::metrics
