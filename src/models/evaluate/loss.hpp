// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"
#include "models/layers/cross_entropy.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 3> kLossFigures{{
    {.key = "loss_nats",
     .decimals = 4,
     .demo_decimals = 4,
     .meaning = "How badly the model guesses the next token of the text: the mean of −log p(target), in nats; lower is "
                "better."},
    {.key = "bits_per_byte",
     .demo_decimals = 3,
     .meaning = "The loss in bits for each byte of the text, which compares models with different tokens."},
    {.key = "perplexity",
     .may_overflow = true,
     .meaning = "e to the loss: the model is as unsure as if it guessed among so many tokens."},
}};
inline constexpr const Figure& kLossNats = kLossFigures[0];
inline constexpr const Figure& kBitsPerByte = kLossFigures[1];
inline constexpr const Figure& kPerplexity = kLossFigures[2];

/// Returns a mean loss as nats, bits and perplexity.
inline Values loss_values(double nats) { return {nats, nats / std::log(2.0), std::exp(nats)}; }

template <typename T>
class LossSums : public Sums<T> {
 public:
  explicit LossSums(const models::DecoderConfig& /*config*/) {}

  void add_losses(const LossSample<T>& sample) override {
    for (std::int64_t n = 0; n < sample.tokens(); ++n) {
      if (sample.targets(n) != layers::kIgnoredTarget) loss_.add(static_cast<double>(sample.token_losses(n)));
    }
  }
  Values of_model() const override { return loss_values(loss_.value()); }

 private:
  Mean loss_;
};

inline constexpr Metric kLoss{
    .name = "loss",
    .definition =
        "mean of −log p(target) over the tokens, in nats; in bits: its sum / ln 2 over the bytes of text that the "
        "targets stand for, which is loss / ln 2 where tokens are bytes; e^loss",
    .figures = kLossFigures,
    .scope = Scope::model,
    .inputs = {Input::token_losses},
    .sums = kSumsOf<LossSums>,
    .headline =
        [](const FigureRow& row) {
          const auto bits = row.find(kBitsPerByte);  // null if the number of text bytes is unknown
          return fmt::format("loss {:.4f} nats a token{}, perplexity {:.4f}", row.at(kLossNats),
                             bits ? fmt::format(", {:.4f} bits per byte", *bits) : "", row.at(kPerplexity));
        },
    .training_text = [](const FigureRow& row) { return fmt::format("loss {:.4f} nats", row.at(kLossNats)); },
};

}  // namespace headgate::metrics
