// SPDX-License-Identifier: Apache-2.0
#include "models/metrics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/plain_decoder.hpp"
#include "models/tiny.hpp"

// Statistics gathered without a T×S buffer, against plain loops over the whole attention matrix.

namespace headgate::models {
namespace {

constexpr double kClose = 1e-11;

struct Average {
  double sum = 0.0, count = 0.0;
  void add(double value) {
    sum += value;
    count += 1.0;
  }
  double value() const { return count == 0.0 ? 0.0 : sum / count; }
};

struct Evaluated {
  DecoderConfig config;
  std::vector<PlainRun> runs;
  std::vector<std::vector<std::uint8_t>> triggers;
  EvaluationReport report;
  std::optional<BackcopyReport> backcopy;

  double weight(std::size_t run, std::size_t layer, std::int64_t b, std::int64_t h, std::int64_t t,
                std::int64_t j) const {
    const std::int64_t at = ((b * config.heads + h) * kTinyBatch.seq + t) * kTinyBatch.seq + j;
    return runs[run].layers[layer].weights[static_cast<std::size_t>(at)];
  }
};

/// Two batches through the evaluator and through the formulas.
Evaluated evaluate(const std::string& gate, bool with_triggers) {
  Evaluated out;
  out.config = tiny_config();
  out.config.gate = layers::parse_gate(gate);
  Decoder<double> decoder(out.config, kTinyBatch, Purpose::evaluate);
  const std::vector<double> values = large_parameters(decoder.table(), 41);
  Evaluator<double> evaluator(decoder);
  for (const std::uint64_t seed : {1U, 2U}) {
    TinyBatch batch(out.config, kTinyBatch, seed);
    for (std::int32_t& target : batch.targets) target = std::max(target, 0);
    out.runs.push_back(run_plainly(out.config, values.data(), kTinyBatch, batch.tokens.data(), batch.targets.data()));
    std::vector<std::uint8_t> triggers;
    for (const std::int32_t token : batch.tokens) triggers.push_back(token % 3 == 0 ? 1 : 0);
    evaluator.add(values.data(), batch.tokens.data(), batch.targets.data(), with_triggers ? triggers.data() : nullptr);
    out.triggers.push_back(triggers);
  }
  out.report = evaluator.report();
  out.backcopy = evaluator.backcopy();
  return out;
}

void check_attention(const Evaluated& e) {
  const DecoderConfig& c = e.config;
  double overall = 0.0, sinks = 0.0, massive = 0.0;
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(c.layers); ++layer) {
    Average all, sink, uniform;
    double largest = 0.0;
    for (std::int64_t h = 0; h < c.heads; ++h) {
      Average head;
      for (std::size_t run = 0; run < e.runs.size(); ++run) {
        for (std::int64_t b = 0; b < kTinyBatch.batch; ++b) {
          for (std::int64_t t = 1; t < kTinyBatch.seq; ++t) {
            head.add(e.weight(run, layer, b, h, t, 0));
            uniform.add(1.0 / static_cast<double>(t + 1));
          }
        }
      }
      sink.add(head.value() > 0.3 ? 1.0 : 0.0);
      all.add(head.value());
    }
    for (const PlainRun& run : e.runs) {
      for (const double x : run.layers[layer].output) largest = std::max(largest, std::abs(x));
    }
    const AttentionStatistics& got = e.report.layers[layer].attention;
    EXPECT_NEAR(got.first_token_attention, all.value(), kClose);
    EXPECT_NEAR(got.first_token_attention_uniform, uniform.value(), kClose);
    EXPECT_NEAR(got.sink_rate, sink.value(), kClose);
    EXPECT_NEAR(got.massive_activation, largest, kClose * largest);
    overall += all.value() / static_cast<double>(c.layers);
    sinks += sink.value() / static_cast<double>(c.layers);
    massive += largest / static_cast<double>(c.layers);
  }
  EXPECT_NEAR(e.report.overall.attention.first_token_attention, overall, kClose);
  EXPECT_NEAR(e.report.overall.attention.sink_rate, sinks, kClose);
  EXPECT_NEAR(e.report.overall.attention.massive_activation, massive, kClose * massive);
}

void check_gates(const Evaluated& e) {
  Average overall;
  for (std::size_t layer = 0; layer < e.report.layers.size(); ++layer) {
    Average mean, tenth, hundredth;
    for (const PlainRun& run : e.runs) {
      for (const double g : run.layers[layer].gates) {
        mean.add(g);
        tenth.add(g < 0.1 ? 1.0 : 0.0);
        hundredth.add(g < 0.01 ? 1.0 : 0.0);
      }
    }
    const AttentionStatistics& got = e.report.layers[layer].attention;
    ASSERT_EQ(got.gate_mean.has_value(), mean.count > 0.0);
    if (mean.count == 0.0) continue;
    EXPECT_NEAR(*got.gate_mean, mean.value(), kClose * (1.0 + std::abs(mean.value())));
    EXPECT_NEAR(*got.gate_below_tenth, tenth.value(), kClose);
    EXPECT_NEAR(*got.gate_below_hundredth, hundredth.value(), kClose);
    overall.add(mean.value());
  }
  if (overall.count == 0.0) return;
  EXPECT_NEAR(*e.report.overall.attention.gate_mean, overall.value(), kClose * (1.0 + overall.value()));
}

void check_loss(const Evaluated& e) {
  Average loss;
  for (const PlainRun& run : e.runs) {
    for (const double value : run.losses) loss.add(value);
  }
  EXPECT_NEAR(e.report.overall.loss.nats, loss.value(), kClose * loss.value());
  EXPECT_NEAR(e.report.overall.loss.bits_per_token, loss.value() / std::log(2.0), 2 * kClose * loss.value());
  EXPECT_NEAR(e.report.overall.loss.perplexity, std::exp(loss.value()), 1e-9 * std::exp(loss.value()));
  for (std::size_t layer = 0; layer < e.report.layers.size(); ++layer) {
    Average exit;
    for (const PlainRun& run : e.runs) {
      for (const double value : run.layers[layer].exit_losses) exit.add(value);
    }
    EXPECT_NEAR(e.report.layers[layer].loss.nats, exit.value(), kClose * exit.value()) << layer;
  }
  EXPECT_DOUBLE_EQ(e.report.layers.back().loss.nats, e.report.overall.loss.nats);
}

class Statistics : public testing::TestWithParam<std::string> {};

TEST_P(Statistics, MatchPlainLoops) {
  const Evaluated e = evaluate(GetParam(), false);
  EXPECT_FALSE(e.backcopy.has_value());
  check_attention(e);
  check_gates(e);
  check_loss(e);
}

INSTANTIATE_TEST_SUITE_P(Gates, Statistics,
                         testing::Values("none", "learned_sinks", "off_by_one", "headwise", "elementwise",
                                         "head_shared", "g1-elementwise-parameter", "g2-elementwise", "g3-headwise",
                                         "g4-head_shared", "g5-elementwise", "g5-headwise-silu-add", "output_silu"));

class Backcopy : public testing::TestWithParam<std::string> {};

TEST_P(Backcopy, SplitsByTrigger) {
  const Evaluated e = evaluate(GetParam(), true);
  ASSERT_TRUE(e.backcopy.has_value());
  const DecoderConfig& c = e.config;
  Average attention[2], gate[2], loss[2], ratio;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (std::int64_t n = 0; n < kTinyBatch.batch * kTinyBatch.seq; ++n) {
      const auto at = static_cast<std::size_t>(n);
      const std::int64_t b = n / kTinyBatch.seq, t = n % kTinyBatch.seq;
      const bool trigger = e.triggers[run][at] != 0;
      loss[trigger ? 1 : 0].add(e.runs[run].losses[at]);
      if (t == 0) continue;
      for (std::size_t layer = 0; layer < e.report.layers.size(); ++layer) {
        for (std::int64_t h = 0; h < c.heads; ++h) attention[trigger ? 1 : 0].add(e.weight(run, layer, b, h, t, 0));
        const std::vector<double>& gates = e.runs[run].layers[layer].gates;
        const std::size_t width = gates.size() / e.triggers[run].size();
        for (std::size_t w = 0; w < width; ++w) gate[trigger ? 1 : 0].add(gates[at * width + w]);
      }
    }
    for (const PlainLayer& layer : e.runs[run].layers) {
      for (std::int64_t b = 0; b < kTinyBatch.batch; ++b) {
        for (std::int64_t h = 0; h < c.kv_heads; ++h) {
          const auto norm = [&](std::int64_t t) {
            double sum = 0.0;
            for (std::int64_t d = 0; d < c.head_dim; ++d) {
              const std::int64_t at = ((b * kTinyBatch.seq + t) * c.kv_heads + h) * c.head_dim + d;
              sum += std::pow(layer.values[static_cast<std::size_t>(at)], 2);
            }
            return std::sqrt(sum);
          };
          Average others;
          for (std::int64_t t = 1; t < kTinyBatch.seq; ++t) others.add(norm(t));
          ratio.add(norm(0) / others.value());
        }
      }
    }
  }
  const BackcopyReport& got = *e.backcopy;
  EXPECT_NEAR(got.bos_attention_trigger, attention[1].value(), kClose);
  EXPECT_NEAR(got.bos_attention_other, attention[0].value(), kClose);
  EXPECT_NEAR(got.loss_trigger, loss[1].value(), kClose * loss[1].value());
  EXPECT_NEAR(got.loss_other, loss[0].value(), kClose * loss[0].value());
  EXPECT_NEAR(got.bos_value_norm_ratio, ratio.value(), kClose * ratio.value());
  ASSERT_EQ(got.gate_trigger.has_value(), has_gate(c.gate));
  if (!has_gate(c.gate)) return;
  EXPECT_NEAR(*got.gate_trigger, gate[1].value(), kClose);
  EXPECT_NEAR(*got.gate_other, gate[0].value(), kClose);
}

INSTANTIATE_TEST_SUITE_P(Gates, Backcopy, testing::Values("none", "headwise", "elementwise", "g2-elementwise"));

TEST(Evaluation, WantsTriggersForEveryBatchOrNone) {
  const DecoderConfig config = tiny_config();
  Decoder<float> decoder(config, kTinyBatch, Purpose::evaluate);
  std::vector<float> values(static_cast<std::size_t>(decoder.table().total()));
  initialise(values.data(), decoder.table(), config, 1);
  const TinyBatch batch(config, kTinyBatch, 1);
  const std::vector<std::uint8_t> triggers(batch.tokens.size(), 1);
  Evaluator<float> evaluator(decoder);
  evaluator.add(values.data(), batch.tokens.data(), batch.targets.data(), triggers.data());
  EXPECT_THROW(evaluator.add(values.data(), batch.tokens.data(), batch.targets.data()), Error);
}

/// Figures of a model whose second layer has a NaN in `parameter`, in the first of two batches or in the second.
Evaluated evaluate_broken(const std::string& parameter, bool in_first) {
  Evaluated out;
  out.config = tiny_config();
  out.config.gate = layers::parse_gate("elementwise");
  Decoder<double> decoder(out.config, kTinyBatch, Purpose::evaluate);
  const std::vector<double> values = large_parameters(decoder.table(), 1);
  std::vector<double> broken = values;
  broken.at(static_cast<std::size_t>(decoder.table().find("model.layers.1." + parameter)->offset)) = std::nan("");
  const TinyBatch batch(out.config, kTinyBatch, 1);
  std::vector<std::uint8_t> triggers;
  for (const std::int32_t token : batch.tokens) triggers.push_back(token % 3 == 0 ? 1 : 0);
  Evaluator<double> evaluator(decoder);
  for (const bool first : {true, false}) {
    evaluator.add(first == in_first ? broken.data() : values.data(), batch.tokens.data(), batch.targets.data(),
                  triggers.data());
  }
  out.report = evaluator.report();
  out.backcopy = evaluator.backcopy();
  return out;
}

/// Every figure that a NaN reaches is one, whichever token, thread or batch meets it.
TEST(Evaluation, ShowsNaNAsNaN) {
  for (const bool in_first : {true, false}) {
    for (const char* parameter : {"self_attn.q_proj.weight", "self_attn.gate_proj.weight", "mlp.down_proj.weight"}) {
      const Evaluated got = evaluate_broken(parameter, in_first);
      EXPECT_TRUE(is_finite(got.report.layers[0])) << parameter;
      for (const Figures& figures : {got.report.layers[1], got.report.overall}) {
        EXPECT_FALSE(is_finite(figures)) << parameter;
        EXPECT_TRUE(std::isnan(figures.loss.nats)) << parameter;
        EXPECT_TRUE(std::isnan(figures.attention.massive_activation)) << parameter;
      }
    }
    const AttentionStatistics attention =
        evaluate_broken("self_attn.q_proj.weight", in_first).report.layers[1].attention;
    EXPECT_TRUE(std::isnan(attention.first_token_attention));
    EXPECT_TRUE(std::isnan(attention.sink_rate));
    const AttentionStatistics gate = evaluate_broken("self_attn.gate_proj.weight", in_first).report.layers[1].attention;
    EXPECT_TRUE(std::isnan(gate.gate_mean.value()));
    EXPECT_TRUE(std::isnan(gate.gate_below_tenth.value()));
    EXPECT_TRUE(std::isnan(gate.gate_below_hundredth.value()));
    const BackcopyReport backcopy = evaluate_broken("self_attn.v_proj.weight", in_first).backcopy.value();
    EXPECT_TRUE(std::isnan(backcopy.bos_value_norm_ratio));
  }
}

/// Targets that do not count are in no mean.
TEST(Evaluation, LeavesOutIgnoredTargets) {
  const DecoderConfig config = tiny_config();
  Decoder<double> decoder(config, kTinyBatch, Purpose::evaluate);
  const std::vector<double> values = large_parameters(decoder.table(), 1);
  const TinyBatch batch(config, kTinyBatch, 1);
  Evaluator<double> evaluator(decoder);
  evaluator.add(values.data(), batch.tokens.data(), batch.targets.data());
  const double mean = decoder.loss(values.data(), batch.tokens.data(), batch.targets.data());
  EXPECT_NEAR(evaluator.report().overall.loss.nats, mean, kClose * mean);
}

}  // namespace
}  // namespace headgate::models
