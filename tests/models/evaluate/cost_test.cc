// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder/tiny.hpp"
#include "models/evaluate/counted_cross_entropy.hpp"
#include "models/evaluate/evaluator.hpp"
#include "models/evaluate/loss.hpp"
#include "models/layers/gate_variant.hpp"

// Checks that figures nobody asks for are not computed.

namespace headgate::metrics {
namespace {

using models::kTinyBatch;
using models::Tap;
using models::Taps;

constexpr std::int64_t kTokens = kTinyBatch.batch * kTinyBatch.seq;

/// Counts the rows of logits that evaluating a model on a batch takes.
class Costs : public testing::Test {
 protected:
  Costs() : config(config_of()), decoder(config, kTinyBatch, models::Purpose::evaluate), batch(config, kTinyBatch, 1) {
    values = models::large_parameters(decoder.table(), 1);
  }

  static models::DecoderConfig config_of() {
    models::DecoderConfig config = models::tiny_config();
    config.gate = layers::parse_gate("headwise");
    return config;
  }

  std::int64_t rows_with(const MetricList& metrics) {
    const std::int64_t before = rows_of_logits();
    Evaluator<double> evaluator(decoder, metrics);
    evaluator.add(values.data(), batch.tokens.data(), batch.targets.data());
    return rows_of_logits() - before;
  }

  models::DecoderConfig config;
  models::Decoder<double> decoder;
  models::TinyBatch batch;
  std::vector<double> values;
};

TEST_F(Costs, VocabularyHead_WithoutLayerLosses_RunsOnce) {
  for (const Metric* metric : all_metrics()) {
    const std::int64_t passes = metric->inputs.has(Input::exit_loss) ? config.layers + 1 : 1;
    EXPECT_EQ(rows_with({metric}), passes * kTokens) << metric->name;
  }
  EXPECT_EQ(rows_with({}), kTokens);
  EXPECT_EQ(rows_with(parse_metrics({"layer_loss"})), (config.layers + 1) * kTokens);
  EXPECT_EQ(rows_with(default_metrics()), kTokens) << "what an evaluation has by default runs it once";
}

TEST_F(Costs, Evaluation_EveryMetric_TakesNoMoreMemoryThanItsInputs) {
  const auto bytes = [&](const std::vector<std::string>& names) {
    return Evaluator<double>::planned_bytes(config, kTinyBatch, parse_metrics(names));
  };
  constexpr std::size_t kNumber = sizeof(double) * kTokens;
  EXPECT_EQ(bytes({"massive_activation,layer_loss,first_token_value_norm_ratio"}), 0U);
  EXPECT_EQ(bytes({"loss"}), kNumber);
  EXPECT_EQ(bytes({"sink_rate"}), static_cast<std::size_t>(config.heads) * kNumber);
  EXPECT_EQ(bytes({"gate_mean,gate_below"}), static_cast<std::size_t>(config.heads) * kNumber) << "one gate a head";
  EXPECT_EQ(bytes({"attention_entropy"}), static_cast<std::size_t>(config.heads) * kNumber);
  EXPECT_EQ(bytes({"all"}), static_cast<std::size_t>(1 + 3 * config.heads) * kNumber);
}

/// Asks for one part of a LayerView, and records which parts it gets.
class Watching : public models::LayerObserver<double> {
 public:
  explicit Watching(Taps wanted) : wanted_(wanted) {}

  models::Taps taps() const override { return wanted_; }
  void after_layer(const models::LayerView<double>& view) override {
    Taps came;
    if (view.q.present() && view.k.present() && view.lse.present()) came |= {Tap::scores};
    if (view.v.present()) came |= {Tap::values};
    if (view.head_outputs.present()) came |= {Tap::head_outputs};
    if (view.gate.present()) came |= {Tap::gate_logits};
    if (view.output.present()) came |= {Tap::output};
    if (view.exit_loss) came |= {Tap::exit_loss};
    EXPECT_EQ(came, wanted_) << "layer " << view.layer;
    EXPECT_EQ(view.layer, seen++);
  }

  std::int64_t seen = 0;

 private:
  Taps wanted_;
};

TEST_F(Costs, Observer_NamesTaps_ReceivesThemOnly) {
  constexpr Taps kAll{Tap::scores, Tap::gate_logits, Tap::values, Tap::head_outputs, Tap::output, Tap::exit_loss};
  for (const Taps taps : {Taps{}, Taps{Tap::scores}, Taps{Tap::gate_logits}, Taps{Tap::values}, Taps{Tap::head_outputs},
                          Taps{Tap::output}, Taps{Tap::exit_loss}, kAll}) {
    Watching observer(taps);
    const std::int64_t before = rows_of_logits();
    decoder.loss(values.data(), batch.tokens.data(), batch.targets.data(), &observer);
    EXPECT_EQ(observer.seen, config.layers);
    EXPECT_EQ(rows_of_logits() - before, (taps.has(Tap::exit_loss) ? config.layers + 1 : 1) * kTokens);
  }
}

}  // namespace
}  // namespace headgate::metrics
