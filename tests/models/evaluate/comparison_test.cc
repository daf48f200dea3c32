// SPDX-License-Identifier: Apache-2.0
// Compares a model with itself after roundings, and with another model, by plain formulas.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/data/data.hpp"
#include "models/decoder/tiny.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/layers/activation_rounding.hpp"
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

/// Returns the figures of a model whose log-probabilities are q(n), beside a reference whose log-probabilities are
/// p(n), for sequence n.
template <class LogP, class LogQ>
Divergence plain_divergence(const DecoderConfig& config, const models::TinyBatch& batch, const LogP& log_p,
                            const LogQ& log_q) {
  Divergence out;
  double count = 0.0;
  for (std::int64_t n = 0; n < kSequences; ++n) {
    const std::int32_t* const tokens = batch.tokens.data() + n * kTokens;
    const std::vector<double> reference = log_p(tokens), other = log_q(tokens);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int32_t target = batch.targets[static_cast<std::size_t>(n * kTokens + t)];
      if (target == layers::kIgnoredTarget) continue;
      const double *p = reference.data() + t * config.vocab, *q = other.data() + t * config.vocab;
      count += 1.0;
      out.loss_nats -= q[target];
      out.reference_loss_nats -= p[target];
      for (std::int64_t v = 0; v < config.vocab; ++v) out.kl_nats += std::exp(p[v]) * (p[v] - q[v]);
      const bool same = std::max_element(p, p + config.vocab) - p == std::max_element(q, q + config.vocab) - q;
      out.same_top_1 += same ? 1.0 : 0.0;
    }
  }
  for (double* sum : {&out.loss_nats, &out.reference_loss_nats, &out.kl_nats, &out.same_top_1}) *sum /= count;
  return out;
}

/// Expects figures that differ by f32 roundings alone. `slack` is the relative difference of the changes by int8.
void expect_near(const Divergence& got, const Divergence& wanted, double slack) {
  EXPECT_NEAR(got.reference_loss_nats, wanted.reference_loss_nats, 1e-4);
  EXPECT_NEAR(got.loss_nats, wanted.loss_nats, 1e-4 + slack * std::abs(wanted.loss_nats - wanted.reference_loss_nats));
  EXPECT_NEAR(got.kl_nats, wanted.kl_nats, 1e-6 + slack * wanted.kl_nats);
  EXPECT_NEAR(got.same_top_1, wanted.same_top_1, 0.005);
  EXPECT_GT(got.kl_nats, 0.0) << "the models differ";
}

TEST(Comparison, KeysAndValuesInInt8_EveryFamily_AreThoseOfTheCachedDecoder) {
  std::vector<DecoderConfig> configs = models::all_families();
  configs.push_back(models::tiny_config());
  for (const DecoderConfig& family : configs) {
    const DecoderConfig config = longer(family);
    const RandomSequences source(config);
    const std::vector<float> parameters = parameters_of(config);
    const auto log_probabilities_with = [&](DType cache, std::int64_t first) {
      return [&, cache, first](const std::int32_t* tokens) {
        return log_probabilities(config, parameters, tokens, cache, first);
      };
    };
    const auto wanted_with = [&](std::int64_t first) {
      return plain_divergence(config, source.batch, log_probabilities_with(DType::f32, 0),
                              log_probabilities_with(DType::i8, first));
    };
    const Divergence wanted = wanted_with(0), wanted_first = wanted_with(6);
    for (const std::int64_t part : {0, 100, 2048}) {
      EvaluationPlan plan{.batch = 2, .batches = 2, .part = part, .cache = DType::i8};
      if (part == 100) plan = {.batch = 1, .batches = 4, .part = part, .cache = DType::i8, .cache_first = 6};
      HeldOutEvaluator evaluator(config, source, plan, metrics::parse_metrics({"loss"}));
      const std::vector<Comparison> got = evaluator.compare_rounded(parameters.data());
      ASSERT_EQ(got.size(), 1U);
      EXPECT_EQ(got.front().what, Compared::cache);
      EXPECT_EQ(got.front().name, "i8");
      EXPECT_EQ(got.front().first, plan.cache_first);
      expect_near(got.front().figures, part == 100 ? wanted_first : wanted, 0.1);
    }
  }
}

TEST(Comparison, AllTokensWhole_EveryFamily_AreNotRounded) {
  for (const DecoderConfig& family : models::all_families()) {
    const DecoderConfig config = longer(family);
    const RandomSequences source(config);
    const EvaluationPlan plan{.batch = 2, .batches = 2, .cache = DType::i8, .cache_first = kTokens};
    HeldOutEvaluator evaluator(config, source, plan, metrics::parse_metrics({"loss"}));
    const Divergence got = evaluator.compare_rounded(parameters_of(config).data()).front().figures;
    EXPECT_NEAR(got.loss_nats, got.reference_loss_nats, 1e-5);
    EXPECT_NEAR(got.kl_nats, 0.0, 1e-7);
  }
}

/// Returns log p (kTokens,V) of a sequence by a decoder that rounds the inputs of products, and has not cut it.
std::vector<double> rounded_log_probabilities(const DecoderConfig& config, const std::vector<float>& parameters,
                                              const std::int32_t* tokens, layers::ActivationRounding rounding) {
  models::Decoder<float> decoder(config, {1, kTokens}, models::Purpose::evaluate, {}, {.activations = rounding});
  std::vector<float> out(static_cast<std::size_t>(kTokens * config.vocab));
  decoder.log_probabilities(out.data(), parameters.data(), tokens);
  return {out.begin(), out.end()};
}

TEST(Comparison, ActivationsInInt8_EveryFamily_AreThoseOfTheRoundingDecoder) {
  using enum layers::ActivationRounding;
  std::vector<DecoderConfig> configs = models::mixed_families();
  configs.push_back(models::tiny_config());
  for (const DecoderConfig& family : configs) {
    const DecoderConfig config = longer(family);
    const RandomSequences source(config);
    const std::vector<float> parameters = parameters_of(config);
    const EvaluationPlan plan{.batch = 2, .batches = 2, .cache = DType::i8, .activations = {tensor, token}};
    HeldOutEvaluator evaluator(config, source, plan, metrics::parse_metrics({"loss"}));
    const std::vector<Comparison> got = evaluator.compare_rounded(parameters.data());
    ASSERT_EQ(got.size(), 3U);
    EXPECT_EQ(got[0].name, "i8");
    for (std::size_t i = 0; i < plan.activations.size(); ++i) {
      const auto log_probabilities_with = [&](layers::ActivationRounding rounding) {
        return [&, rounding](const std::int32_t* tokens) {
          return rounded_log_probabilities(config, parameters, tokens, rounding);
        };
      };
      EXPECT_EQ(got[i + 1].what, Compared::activations);
      EXPECT_EQ(got[i + 1].name, word_of(plan.activations[i]));
      expect_near(got[i + 1].figures,
                  plain_divergence(config, source.batch, log_probabilities_with(none),
                                   log_probabilities_with(plan.activations[i])),
                  0.1);
    }
  }
}

TEST(Comparison, OtherModel_SameVocabulary_IsItsDivergence) {
  const DecoderConfig config = longer(models::tiny_config()), other = longer(models::mixed_families().front());
  const RandomSequences source(config);
  const std::vector<float> parameters = parameters_of(config), others = parameters_of(other);
  HeldOutEvaluator evaluator(config, source, {.batch = 2, .batches = 2}, metrics::parse_metrics({"loss"}));
  const auto log_p = [&](const std::int32_t* tokens) { return log_probabilities(other, others, tokens, DType::f32); };
  const auto log_q = [&](const std::int32_t* tokens) {
    return log_probabilities(config, parameters, tokens, DType::f32);
  };
  expect_near(evaluator.compare_with(other, others.data(), parameters.data()),
              plain_divergence(config, source.batch, log_p, log_q), 1e-3);
  const Divergence same = evaluator.compare_with(config, parameters.data(), parameters.data());
  EXPECT_EQ(same.kl_nats, 0.0);
  EXPECT_EQ(same.same_top_1, 1.0);
  EXPECT_EQ(same.loss_nats, same.reference_loss_nats);
  DecoderConfig larger = other;
  ++larger.vocab;
  EXPECT_THROW(evaluator.compare_with(larger, parameters_of(larger).data(), parameters.data()), Error);
}

TEST(Comparison, Memory_WithEveryComparison_IsPlanned) {
  const DecoderConfig config = longer(models::tiny_config()), other = longer(models::mixed_families().front());
  const RandomSequences source(config);
  const auto bytes = [&](const EvaluationPlan& plan, const DecoderConfig* reference = nullptr) {
    std::size_t sum = 0;
    for (const auto& item : evaluation_memory(config, source, plan, metrics::parse_metrics({"loss"}), reference)) {
      sum += item.bytes;
    }
    return static_cast<std::int64_t>(sum);
  };
  const auto of_decoder = [](const DecoderConfig& of, const models::PartOptions& parts) {
    return static_cast<std::int64_t>(
        models::make_decoder(of, {1, kTokens}, models::Purpose::evaluate, models::ModelPrecision::f32, {}, parts)
            ->memory_bytes());
  };
  const auto tensor = layers::ActivationRounding::tensor;
  const std::int64_t without = bytes({.batch = 2, .batches = 2}), held = 2 * 256 * config.vocab * 4;
  EXPECT_EQ(bytes({.batch = 2, .batches = 2, .cache = DType::i8, .cache_first = 4, .activations = {tensor}}) - without,
            held + of_decoder(config, {.tokens = 256}) +
                of_decoder(config, {.tokens = 256, .cache = DType::i8, .cache_first = 4}) +
                of_decoder(config, {.activations = tensor}));
  EXPECT_EQ(bytes({.batch = 2, .batches = 2}, &other) - without,
            held + of_decoder(config, {.tokens = 256}) + of_decoder(other, {.tokens = 256}));
}

}  // namespace
}  // namespace headgate::train
