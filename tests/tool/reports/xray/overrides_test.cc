// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/overrides.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/evaluate/gates.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/layers/support.hpp"

// The changes of the loss, against the plain decoder with parameters that hold the gates.

namespace headgate::xray {
namespace {

using models::BatchShape;
using models::DecoderConfig;

constexpr BatchShape kOverrideShape{1, 7};
constexpr double kLossClose = 2e-5;  // of losses in f32

DecoderConfig config_of(const std::string& gate) {
  DecoderConfig config = models::tiny_config();
  config.gate = layers::parse_gate(gate);
  return config;
}

struct Overridden {
  OverrideRun run;
  metrics::Report report;
  std::vector<double> progress;

  std::optional<double> change(Override kind, std::int64_t layer, std::int64_t head) const {
    return report.heads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)].find(figure(kind));
  }
  std::optional<double> change(Override kind, std::int64_t layer) const {
    return report.layers[static_cast<std::size_t>(layer)].find(figure(kind));
  }
  static const metrics::Figure& figure(Override kind) { return kOverrides[static_cast<std::size_t>(kind)].figure; }
};

class Model {
 public:
  explicit Model(const DecoderConfig& config)
      : config_(config),
        table_(config),
        parameters_(models::single_precision(models::large_parameters(table_, 23))),
        batch_(config, kOverrideShape, 6) {}

  const DecoderConfig& config() const { return config_; }

  Overridden overridden(OverriddenPart part) const {
    Overridden out;
    out.report.layers.resize(static_cast<std::size_t>(config_.layers));
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      out.report.heads.emplace_back(static_cast<std::size_t>(metrics::heads_of_layer(config_, layer)));
    }
    const std::vector<float> parameters = layers::as<float>(parameters_);
    out.run = override_parts(out.report, config_, parameters.data(), batch_.tokens, batch_.targets, part, {},
                             [&](double done) { out.progress.push_back(done); });
    return out;
  }

  models::PlainRun plain() const { return plain(parameters_); }
  double loss() const { return mean(plain().losses); }

  /// The rise of the loss where W_o reads nothing of these heads.
  double rise_without(std::int64_t layer, std::int64_t first, std::int64_t count) const {
    const bool linear = metrics::is_linear(config_, layer);
    const std::int64_t D = linear ? config_.linear.value_dim : config_.head_dim;
    const std::int64_t width = metrics::heads_of_layer(config_, layer) * D;
    std::vector<double> w = parameters_;
    double* out = tensor(w, layer, linear ? "linear_attn.out_proj.weight" : "self_attn.o_proj.weight");
    for (std::int64_t c = 0; c < config_.dim; ++c) std::fill_n(out + c * width + first * D, count * D, 0.0);
    return mean(plain(w).losses) - loss();
  }

  /// The rise of the loss where gates of heads are these (count, features), of any token: a bias alone.
  double rise_with_gates(std::int64_t layer, std::int64_t first, std::int64_t count,
                         const std::vector<double>& gates) const {
    const std::int64_t features = static_cast<std::int64_t>(gates.size()) / count;
    std::vector<double> w = parameters_;
    double *matrix = tensor(w, layer, "self_attn.gate_proj.weight"),
           *bias = tensor(w, layer, "self_attn.gate_proj.bias");
    std::fill_n(matrix + first * features * config_.dim, count * features * config_.dim, 0.0);
    for (std::size_t i = 0; i < gates.size(); ++i) {
      bias[first * features + static_cast<std::int64_t>(i)] =
          gates[i] == 1.0 ? 100.0 : std::log(gates[i] / (1.0 - gates[i]));
    }
    return mean(plain(w).losses) - loss();
  }

 private:
  models::PlainRun plain(const std::vector<double>& w) const {
    return models::run_plainly(config_, w.data(), kOverrideShape, batch_.tokens.data(), batch_.targets.data());
  }
  double mean(const std::vector<double>& losses) const {
    const auto ignored = std::count(batch_.targets.begin(), batch_.targets.end(), -1);
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(kOverrideShape.seq - ignored);
  }
  double* tensor(std::vector<double>& w, std::int64_t layer, const std::string& name) const {
    return w.data() + table_.find("model.layers." + std::to_string(layer) + "." + name)->offset;
  }

  DecoderConfig config_;
  models::ParameterTable table_;
  std::vector<double> parameters_;
  models::TinyBatch batch_;
};

/// The mean over tokens of each gate of heads.
std::vector<double> mean_gates(const Model& model, std::int64_t layer, std::int64_t first, std::int64_t count) {
  const std::vector<double> gates = model.plain().layers[static_cast<std::size_t>(layer)].gates;
  const std::int64_t width = metrics::gate_width(model.config(), layer), features = width / model.config().heads;
  std::vector<double> out(static_cast<std::size_t>(count * features));
  for (std::int64_t t = 0; t < kOverrideShape.seq; ++t) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] +=
          gates[static_cast<std::size_t>(t * width + first * features) + i] / static_cast<double>(kOverrideShape.seq);
    }
  }
  return out;
}

TEST(Overrides, Overrides_Each_EqualModelsWithFixedGates) {
  for (const char* gate : {"g1-headwise-bias", "g1-elementwise-bias"}) {
    const Model model(config_of(gate));
    const Overridden heads = model.overridden(OverriddenPart::heads), whole = model.overridden(OverriddenPart::layers);
    EXPECT_NEAR(heads.run.loss, model.loss(), kLossClose);
    const auto expect = [&](const std::optional<double>& closed, const std::optional<double>& open,
                            const std::optional<double>& mean, std::int64_t layer, std::int64_t first,
                            std::int64_t count) {
      const std::vector<double> means = mean_gates(model, layer, first, count);
      const std::vector<double> ones(means.size(), 1.0);
      EXPECT_NEAR(closed.value(), model.rise_without(layer, first, count), kLossClose) << gate << " " << layer << first;
      EXPECT_NEAR(open.value(), model.rise_with_gates(layer, first, count, ones), kLossClose) << gate << layer << first;
      EXPECT_NEAR(mean.value(), model.rise_with_gates(layer, first, count, means), kLossClose)
          << gate << layer << first;
    };
    for (std::int64_t layer = 0; layer < model.config().layers; ++layer) {
      for (std::int64_t h = 0; h < model.config().heads; ++h) {
        expect(heads.change(Override::closed, layer, h), heads.change(Override::open, layer, h),
               heads.change(Override::mean, layer, h), layer, h, 1);
        EXPECT_EQ(whole.change(Override::closed, layer, h), std::nullopt);
      }
      expect(whole.change(Override::closed, layer), whole.change(Override::open, layer),
             whole.change(Override::mean, layer), layer, 0, model.config().heads);
      EXPECT_EQ(heads.change(Override::closed, layer), std::nullopt);
    }
  }
}

TEST(Overrides, ClosedHead_AnyGate_EqualsAModelWithoutTheHead) {
  for (const char* gate : {"none", "head_rmsnorm", "g1-headwise-add", "g2-elementwise", "g3-headwise", "g4-elementwise",
                           "g5-elementwise", "g1-head_shared"}) {
    const Model model(config_of(gate));
    const Overridden heads = model.overridden(OverriddenPart::heads);
    for (std::int64_t layer = 0; layer < model.config().layers; ++layer) {
      for (std::int64_t h = 0; h < model.config().heads; ++h) {
        EXPECT_NEAR(heads.change(Override::closed, layer, h).value(), model.rise_without(layer, h, 1), kLossClose)
            << gate;
      }
    }
  }
}

TEST(Overrides, Gate_SameForEveryToken_EqualsItsMean) {
  for (const char* gate : {"g1-headwise-parameter", "g1-elementwise-parameter", "g1-head_shared-parameter"}) {
    const Model model(config_of(gate));
    for (const OverriddenPart part : {OverriddenPart::heads, OverriddenPart::layers}) {
      const Overridden got = model.overridden(part);
      for (std::int64_t layer = 0; layer < model.config().layers; ++layer) {
        const auto change = [&](Override kind) {
          return part == OverriddenPart::heads ? got.change(kind, layer, 1) : got.change(kind, layer);
        };
        EXPECT_NEAR(change(Override::mean).value(), 0.0, 1e-6) << gate;
        EXPECT_GT(std::abs(change(Override::open).value()), 1e-4) << gate;
      }
    }
  }
}

TEST(Overrides, Override_GateDoesNotSuit_IsLeftOutWithTheReason) {
  for (const auto& [gate, why] : std::vector<std::pair<std::string, std::string>>{
           {"none", "no gate"}, {"g2", "values"}, {"g5", "W_o"}, {"g1-headwise-add", "added"}}) {
    const Model model(config_of(gate));
    EXPECT_EQ(reason_left_out(model.config().gate, Override::closed), "");
    const Overridden got = model.overridden(OverriddenPart::heads);
    for (const Override kind : {Override::open, Override::mean}) {
      EXPECT_NE(reason_left_out(model.config().gate, kind).find(why), std::string::npos) << gate;
      EXPECT_EQ(got.change(kind, 0, 0), std::nullopt) << gate;
    }
    EXPECT_EQ(overrides_of(model.config()).size(), 1U) << gate;
  }
  EXPECT_EQ(overrides_of(config_of("g1-head_shared")).size(), kOverrides.size());
}

TEST(Overrides, ClosedHead_LayersThatDiffer_EqualsAModelWithoutTheHead) {
  for (const DecoderConfig& config : models::mixed_families()) {
    const Model model(config);
    const Overridden heads = model.overridden(OverriddenPart::heads), whole = model.overridden(OverriddenPart::layers);
    EXPECT_EQ(heads.run.passes, std::ssize(heads.progress) + 1);
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      const std::int64_t count = metrics::heads_of_layer(config, layer);
      for (std::int64_t h = 0; h < count; ++h) {
        EXPECT_NEAR(heads.change(Override::closed, layer, h).value(), model.rise_without(layer, h, 1), kLossClose);
      }
      EXPECT_NEAR(whole.change(Override::closed, layer).value(), model.rise_without(layer, 0, count), kLossClose);
    }
  }
}

/// SiLU has no value that is open, so value heads have the other overrides.
TEST(Overrides, Override_LinearAttention_HasClosedAndMean) {
  const DecoderConfig qwen = models::mixed_families()[0], olmo = models::mixed_families()[1];
  for (const DecoderConfig& config : {qwen, olmo}) {
    const Overridden got = Model(config).overridden(OverriddenPart::heads);
    EXPECT_EQ(got.change(Override::open, 0, 0), std::nullopt);
    EXPECT_GT(std::abs(got.change(Override::mean, 0, 0).value()), 1e-4);
    EXPECT_EQ(got.change(Override::open, 1, 0).has_value(), has_gate(config.gate));
    EXPECT_EQ(got.change(Override::mean, 1, 0).has_value(), has_gate(config.gate));
  }
  EXPECT_EQ(reason_left_out(qwen, Override::open), "");
  EXPECT_EQ(reason_left_out(olmo, Override::mean), "");
  EXPECT_EQ(reason_left_out(olmo, Override::open),
            "attention has no gate, and SiLU, the output gate of linear attention, has no open value");
}

/// With one token, an output gate is its mean.
TEST(Overrides, MeanGate_LinearAttentionOnOneToken_ChangesNothing) {
  const DecoderConfig config = models::mixed_families().front();
  const models::ParameterTable table(config);
  const std::vector<float> parameters = layers::as<float>(models::large_parameters(table, 23));
  metrics::Report report;
  report.layers.resize(2);
  override_parts(report, config, parameters.data(), {3}, {5}, OverriddenPart::layers, {}, [](double) {});
  EXPECT_NEAR(report.layers[0].at(Overridden::figure(Override::mean)), 0.0, 1e-6);
  EXPECT_GT(std::abs(report.layers[0].at(Overridden::figure(Override::closed))), 1e-4);
}

TEST(Overrides, Overrides_Planned_TakeThatManyPasses) {
  const DecoderConfig gated = config_of("headwise"), plain = config_of("none");  // 2 layers of 4 heads
  EXPECT_EQ(planned_passes(gated, OverriddenPart::heads), 1 + 3 * 8);
  EXPECT_EQ(planned_passes(gated, OverriddenPart::layers), 1 + 3 * 2);
  EXPECT_EQ(planned_passes(plain, OverriddenPart::heads), 1 + 8);
  const Overridden got = Model(gated).overridden(OverriddenPart::heads);
  EXPECT_EQ(got.run.passes, 25);
  EXPECT_EQ(got.run.tokens, kOverrideShape.seq);
  ASSERT_EQ(got.progress.size(), 24U);
  EXPECT_TRUE(std::is_sorted(got.progress.begin(), got.progress.end()));
  EXPECT_EQ(got.progress.back(), 1.0);
}

TEST(Overrides, Overrides_OneLayer_AreComputed) {
  DecoderConfig config = config_of("elementwise");
  config.layers = 1;
  const Model model(config);
  EXPECT_NEAR(model.overridden(OverriddenPart::layers).change(Override::closed, 0).value(),
              model.rise_without(0, 0, config.heads), kLossClose);
}

}  // namespace
}  // namespace headgate::xray
