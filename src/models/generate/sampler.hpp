// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "library/core/random.hpp"

namespace headgate::generate {

/// How a token is chosen from the logits l(V), applied in the order of transformers: temperature, top_k, top_p.
struct Sampling {
  /// Tokens are drawn with the probabilities softmax(l / temperature). 0: the token of the largest logit is taken, of
  /// several the smallest id; nothing is drawn.
  double temperature = 0.0;
  /// Keeps the k most likely tokens, of equally likely ones those of the smallest ids; 0: all.
  std::int64_t top_k = 0;
  /// Of the remaining tokens, keeps the most likely ones until their sum reaches top_p; 1: all.
  double top_p = 1.0;
  std::uint64_t seed = 1;
};

/// Throws Error if the temperature is below 0 or not finite, top_k is below 0, or top_p is not in (0,1].
void check_sampling(const Sampling& sampling);

/// Draws tokens with its own generator: the same seed and logits give the same tokens.
class Sampler {
 public:
  /// Throws as check_sampling does.
  explicit Sampler(const Sampling& sampling);

  /// Returns the next token, in [0,V); V at least 1. Throws Error if a logit is not finite.
  std::int32_t next(std::span<const float> logits);

 private:
  void sort_most_likely(std::span<const float> logits, std::size_t from, std::size_t to);
  /// Keeps the first ids of kept_ whose weights reach top_p · total; returns their sum.
  double keep_nucleus(std::span<const float> logits, double total);

  Sampling sampling_;
  SplitMix64 random_;
  std::vector<std::int32_t> kept_;  ///< tokens to draw from
  std::vector<double> weights_;     ///< (V) their probabilities, relative to that of the most likely token
};

}  // namespace headgate::generate
