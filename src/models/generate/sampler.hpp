// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "library/core/random.hpp"

namespace headgate::generate {

/// Selects how a token is chosen from the logits l(V). The steps apply in the order of transformers: temperature,
/// top_k, top_p.
struct Sampling {
  /// Draws tokens with the probabilities softmax(l / temperature). 0 takes the largest logit without drawing, the
  /// smallest id on ties.
  double temperature = 0.0;
  /// Keeps the k most likely tokens, smaller ids first on ties. 0 keeps all.
  std::int64_t top_k = 0;
  /// Keeps the most likely remaining tokens until their probabilities sum to top_p. 1 keeps all.
  double top_p = 1.0;
  std::uint64_t seed = 1;
};

/// Throws Error if the temperature is below 0 or not finite, top_k is below 0, or top_p is not in (0,1].
void check_sampling(const Sampling& sampling);

/// Draws tokens with its own generator: the same seed and logits give the same tokens.
class Sampler {
 public:
  /// Throws Error as check_sampling does.
  explicit Sampler(const Sampling& sampling);

  /// Returns the next token, chosen from logits(V) with V ≥ 1. Throws Error if a logit is not finite.
  std::int32_t next(std::span<const float> logits);

 private:
  void sort_most_likely(std::span<const float> logits, std::size_t from, std::size_t to);
  /// Reduces kept_ to the most likely tokens whose weights sum to at least top_p · total. Returns their sum.
  double keep_nucleus(std::span<const float> logits, double total);

  Sampling sampling_;
  SplitMix64 random_;
  std::vector<std::int32_t> kept_;  ///< ids of the tokens to draw from
  std::vector<double> weights_;     ///< (V) probability of each kept token, relative to the most likely one
};

}  // namespace headgate::generate
