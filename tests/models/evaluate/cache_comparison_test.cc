// SPDX-License-Identifier: Apache-2.0
// Compares an evaluation with keys and values in int8 with the decoder of `headgate generate`, by plain formulas.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/tiny.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/layers/cross_entropy.hpp"

namespace headgate::train {
namespace {

using models::CachedDecoder;
using models::DecoderConfig;

constexpr std::int64_t kSequences = 4, kTokens = 300;

/// Holds out random sequences whose last two targets are ignored.
class RandomSequences : public SequenceSource {
 public:
  explicit RandomSequences(const DecoderConfig& config)
      : vocab_(config.vocab), batch(config, {kSequences, kTokens}, 5) {}

  std::int64_t seq_len() const override { return kTokens; }
  std::int64_t vocab() const override { return vocab_; }
  std::int64_t held_out_count() const override { return kSequences; }
  void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override {
    held_out_sequence(tokens, targets, index);
  }
  void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override {
    std::copy_n(batch.tokens.data() + index * kTokens, kTokens, tokens);
    std::copy_n(batch.targets.data() + index * kTokens, kTokens, targets);
  }
  std::uint64_t fingerprint() const override { return 0; }
  std::string description() const override { return "random tokens"; }

 private:
  std::int64_t vocab_;

 public:
  models::TinyBatch batch;
};

DecoderConfig longer(DecoderConfig config) {
  config.seq_len = kTokens;
  return config;
}

std::vector<float> parameters_of(const DecoderConfig& config) {
  std::vector<float> out;
  for (const double value : models::large_parameters(models::ParameterTable(config), 3)) {
    out.push_back(static_cast<float>(value));
  }
  return out;
}

/// Returns log p (kTokens,V) of a sequence by a decoder with a cache, which reads parts of 256 tokens.
std::vector<double> log_probabilities(const DecoderConfig& config, const std::vector<float>& parameters,
                                      const std::int32_t* tokens, DType cache, std::int64_t cache_first = 0) {
  CachedDecoder decoder(config, parameters.data(), {.weights = DType::f32, .cache = cache, .cache_first = cache_first});
  std::vector<float> logits(static_cast<std::size_t>(kTokens * config.vocab));
  const View<float, 3> view(logits.data(), {1, kTokens, config.vocab});
  const View<const std::int32_t, 2> all(tokens, {1, kTokens});
  for (std::int64_t first = 0; first < kTokens; first += 256) {
    const std::int64_t count = std::min<std::int64_t>(256, kTokens - first);
    decoder.append_all(view.range(1, first, count), all.range(1, first, count));
  }
  std::vector<double> out(logits.begin(), logits.end());
  for (auto row = out.begin(); row != out.end(); row += config.vocab) {
    double sum = 0.0;
    for (std::int64_t v = 0; v < config.vocab; ++v) sum += std::exp(row[v]);
    for (std::int64_t v = 0; v < config.vocab; ++v) row[v] -= std::log(sum);
  }
  return out;
}

CacheComparison plain_comparison(const DecoderConfig& config, const std::vector<float>& parameters,
                                 const models::TinyBatch& batch, std::int64_t first) {
  CacheComparison out;
  double count = 0.0;
  for (std::int64_t n = 0; n < kSequences; ++n) {
    const std::int32_t* const tokens = batch.tokens.data() + n * kTokens;
    const std::vector<double> exact = log_probabilities(config, parameters, tokens, DType::f32);
    const std::vector<double> cached = log_probabilities(config, parameters, tokens, DType::i8, first);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int32_t target = batch.targets[static_cast<std::size_t>(n * kTokens + t)];
      if (target == layers::kIgnoredTarget) continue;
      const double *p = exact.data() + t * config.vocab, *q = cached.data() + t * config.vocab;
      count += 1.0;
      out.loss_nats -= q[target];
      out.unrounded_loss_nats -= p[target];
      for (std::int64_t v = 0; v < config.vocab; ++v) out.kl_nats += std::exp(p[v]) * (p[v] - q[v]);
      const bool same = std::max_element(p, p + config.vocab) - p == std::max_element(q, q + config.vocab) - q;
      out.same_top_1 += same ? 1.0 : 0.0;
    }
  }
  for (double* sum : {&out.loss_nats, &out.unrounded_loss_nats, &out.kl_nats, &out.same_top_1}) *sum /= count;
  return out;
}

TEST(CacheComparison, KeysAndValuesInInt8_EveryFamily_AreThoseOfTheCachedDecoder) {
  std::vector<DecoderConfig> configs = models::all_families();
  configs.push_back(models::tiny_config());
  for (const DecoderConfig& family : configs) {
    const DecoderConfig config = longer(family);
    const RandomSequences source(config);
    const std::vector<float> parameters = parameters_of(config);
    std::array<CacheComparison, 2> all_wanted;
    for (std::size_t n = 0; n < 2; ++n)
      all_wanted[n] = plain_comparison(config, parameters, source.batch, n == 0 ? 0 : 6);
    for (const std::int64_t part : {0, 100, 2048}) {
      EvaluationPlan plan{.batch = 2, .batches = 2, .part = part, .cache = DType::i8};
      if (part == 100) plan = {.batch = 1, .batches = 4, .part = part, .cache = DType::i8, .cache_first = 6};
      const CacheComparison& wanted = all_wanted[part == 100 ? 1 : 0];
      HeldOutEvaluator evaluator(config, source, plan, metrics::parse_metrics({"loss"}));
      const CacheComparison got = evaluator.compare_cache(parameters.data());
      EXPECT_EQ(got.dtype, DType::i8);
      EXPECT_EQ(got.first, plan.cache_first);
      EXPECT_NEAR(got.unrounded_loss_nats, wanted.unrounded_loss_nats, 1e-4);
      EXPECT_NEAR(got.loss_nats, wanted.loss_nats,
                  1e-4 + 0.1 * std::abs(wanted.loss_nats - wanted.unrounded_loss_nats));
      EXPECT_NEAR(got.kl_nats, wanted.kl_nats, 1e-6 + 0.1 * wanted.kl_nats);
      EXPECT_NEAR(got.same_top_1, wanted.same_top_1, 0.005);
      EXPECT_GT(got.kl_nats, 0.0) << "rounding changes something";
    }
  }
}

TEST(CacheComparison, AllTokensWhole_EveryFamily_AreNotRounded) {
  for (const DecoderConfig& family : models::all_families()) {
    const DecoderConfig config = longer(family);
    const RandomSequences source(config);
    const EvaluationPlan plan{.batch = 2, .batches = 2, .cache = DType::i8, .cache_first = kTokens};
    HeldOutEvaluator evaluator(config, source, plan, metrics::parse_metrics({"loss"}));
    const CacheComparison got = evaluator.compare_cache(parameters_of(config).data());
    EXPECT_NEAR(got.loss_nats, got.unrounded_loss_nats, 1e-5);
    EXPECT_NEAR(got.kl_nats, 0.0, 1e-7);
  }
}

TEST(CacheComparison, Memory_WithTheCache_IsPlanned) {
  const DecoderConfig config = longer(models::tiny_config());
  const RandomSequences source(config);
  const auto bytes = [&](DType cache) {
    std::size_t sum = 0;
    const EvaluationPlan plan{.batch = 2, .batches = 2, .cache = cache, .cache_first = cache == DType::i8 ? 4 : 0};
    for (const auto& item : evaluation_memory(config, source, plan, metrics::parse_metrics({"loss"}))) {
      sum += item.bytes;
    }
    return static_cast<std::int64_t>(sum);
  };
  std::int64_t wanted = 2 * 256 * config.vocab * 4;  // log-probabilities
  for (const DType cache : {DType::none, DType::i8}) {
    const models::PartOptions parts{.tokens = 256, .cache = cache, .cache_first = cache == DType::i8 ? 4 : 0};
    const auto decoder =
        models::make_decoder(config, {1, kTokens}, models::Purpose::evaluate, models::ModelPrecision::f32, {}, parts);
    wanted += static_cast<std::int64_t>(decoder->memory_bytes());
  }
  EXPECT_EQ(bytes(DType::i8) - bytes(DType::none), wanted);
}

}  // namespace
}  // namespace headgate::train
