// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/training.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "models/data/random.hpp"
#include "models/decoder/config.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/train/settings.hpp"
#include "models/train/trainer.hpp"

namespace headgate::bench {
namespace {

using models::DecoderConfig;
using models::ModelPrecision;

constexpr std::int64_t kVocab = 256;

/// Generates uniform random bytes as training data, because the time of a step does not depend on the text.
class RandomBytes : public train::SequenceSource {
 public:
  explicit RandomBytes(std::int64_t seq_len) : seq_len_(seq_len) {}

  std::int64_t seq_len() const override { return seq_len_; }
  std::int64_t vocab() const override { return kVocab; }
  void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override {
    train::RandomStream random(1, 0, index);
    const auto draw = [&] { return static_cast<std::int32_t>(random.below(kVocab)); };
    tokens[0] = draw();
    for (std::int64_t t = 1; t < seq_len_; ++t) targets[t - 1] = tokens[t] = draw();
    targets[seq_len_ - 1] = draw();
  }
  std::int64_t held_out_count() const override { return 0; }
  void held_out_sequence(std::int32_t* /*tokens*/, std::int32_t* /*targets*/, std::int64_t /*index*/) const override {}
  std::uint64_t fingerprint() const override { return 0; }
  std::string description() const override { return "random bytes"; }

 private:
  std::int64_t seq_len_;
};

train::TrainSettings settings_of(const DecoderConfig& config, std::int64_t batch, ModelPrecision precision,
                                 int threads) {
  train::TrainSettings settings;
  settings.paths = {"random bytes"};
  settings.seq_len = config.seq_len;
  settings.batch = batch;
  settings.precision = precision;
  settings.threads = threads;
  settings.schedule.decay = train::Decay::constant;
  settings.schedule.steps = std::int64_t{1} << 30;  // more steps than bench ever runs
  return settings;
}

class TrainingJob : public BenchJob {
 public:
  TrainingJob(const DecoderConfig& config, std::int64_t batch, ModelPrecision precision, int threads)
      : source_(config.seq_len), trainer_(config, settings_of(config, batch, precision, threads), source_) {}

  void run() override { trainer_.step(); }
  double flops() const override { return trainer_.flops_per_step(); }
  /// Returns f32 even for training in bf16, because the report compares both dtypes with the f32 FMA peak.
  DType compute_dtype() const override { return DType::f32; }

  nlohmann::ordered_json facts() const override {
    const DecoderConfig& c = trainer_.config();
    const train::TrainSettings& s = trainer_.settings();
    return {{"op", "train"},
            {"B", s.batch},
            {"Hq", c.heads},
            {"Hkv", c.kv_heads},
            {"T", s.seq_len},
            {"S", s.seq_len},
            {"D", c.head_dim},
            {"Dv", c.head_dim},
            {"dtype", word_of(s.precision)},
            {"causal", true},
            {"gate", layers::gate_name(c.gate)},
            {"layers", c.layers},
            {"dim", c.dim},
            {"ffn", c.ffn},
            {"vocab", c.vocab},
            {"parameters", models::parameter_count(c)},
            {"tokens", s.tokens_per_step()}};
  }

 private:
  RandomBytes source_;
  train::Trainer trainer_;
};

JobFactory training_job(const DecoderConfig& config, std::int64_t batch, ModelPrecision precision) {
  return [=](int threads) { return std::make_unique<TrainingJob>(config, batch, precision, threads); };
}

struct Size {
  const char* name;
  std::int64_t layers, dim, heads, kv_heads, head_dim, ffn;
  std::int64_t tokens;  ///< tokens per step
  double floor;
};

// Sizes of the models. They have 1.00, 10.7 and 51.6 million parameters, including the gate.
constexpr Size kSizes[] = {{"1M", 4, 128, 4, 4, 32, 416, 4096, 0.45},
                           {"10M", 6, 384, 6, 3, 64, 1024, 4096, 0.60},
                           {"50M", 8, 704, 11, 11, 64, 1872, 2048, 0.60}};
constexpr const char* kComparedWithBaseline = "train/10M/T256";

DecoderConfig gated_config(const Size& size, std::int64_t length) {
  DecoderConfig config;
  config.vocab = kVocab;
  config.layers = size.layers;
  config.dim = size.dim;
  config.heads = size.heads;
  config.kv_heads = size.kv_heads;
  config.head_dim = size.head_dim;
  config.ffn = size.ffn;
  config.seq_len = length;
  config.gate = layers::parse_gate("g1-elementwise-sigmoid-mul");
  return config;
}

/// Returns the model without its gate, but with a wider MLP: its number of parameters is about that of `gated`.
DecoderConfig baseline_of_equal_size(const DecoderConfig& gated) {
  DecoderConfig config = models::baseline_of(gated);
  const std::int64_t missing = models::parameter_count(gated) - models::parameter_count(config);
  config.ffn += missing / (3 * config.dim * config.layers);
  return config;
}

}  // namespace

std::vector<BenchGroup> training_groups() {
  std::vector<BenchGroup> groups;
  for (const Size& size : kSizes) {
    for (const std::int64_t length : {256, 1024}) {
      const DecoderConfig config = gated_config(size, length);
      const std::int64_t batch = size.tokens / length;
      const std::string name = fmt::format("train/{}/T{}", size.name, length);
      const auto job = [batch](const DecoderConfig& c, ModelPrecision precision) {
        return training_job(c, batch, precision);
      };
      BenchGroup group{{{name, job(config, ModelPrecision::f32), 0, size.floor},
                        {name + "/bf16", job(config, ModelPrecision::bf16), 0, {}}},
                       {{0, 1, {}}}};
      if (name == kComparedWithBaseline) {
        group.cases.push_back({name + "/plain", job(baseline_of_equal_size(config), ModelPrecision::f32), 0, {}});
        group.ratios.push_back({0, 2, {}});
      }
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

}  // namespace headgate::bench
