// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "library/core/random.hpp"

namespace headgate::generate {

/// Selects how a token is chosen from the logits l(V). The steps apply in the order temperature, top_k, top_p, as in
/// transformers.
struct Sampling {
  /// Draws tokens with the probabilities softmax(l / temperature). 0 chooses the largest logit without drawing, and the
  /// smallest id among equal logits.
  double temperature = 0.0;
  /// Keeps the `top_k` most likely tokens. Of equally likely tokens, keeps those with the smallest ids. 0 keeps all
  /// tokens.
  std::int64_t top_k = 0;
  /// Keeps the most likely of the remaining tokens until their probabilities add up to top_p. 1 keeps all tokens.
  double top_p = 1.0;
  std::uint64_t seed = 1;
};

/// Throws Error if the temperature is below 0 or not finite, top_k is below 0, or top_p is not in (0,1].
void check_sampling(const Sampling& sampling);

/// Draws tokens with a random generator of its own. The same seed and the same logits give the same tokens.
class Sampler {
 public:
  /// Throws Error as check_sampling() does.
  explicit Sampler(const Sampling& sampling);

  /// Returns the next token, chosen from logits(V). V must be at least 1. Throws Error if a logit is not finite.
  std::int32_t next(std::span<const float> logits);

 private:
  void sort_most_likely(std::span<const float> logits, std::size_t from, std::size_t to);
  /// Reduces kept_ to the most likely tokens: as few as possible whose weights add up to at least top_p · total.
  /// Returns the sum of their weights.
  double keep_nucleus(std::span<const float> logits, double total);

  Sampling sampling_;
  SplitMix64 random_;
  std::vector<std::int32_t> kept_;  ///< ids of the tokens to draw from
  std::vector<double> weights_;     ///< (V) probability of each kept token divided by that of the most likely token
};

}  // namespace headgate::generate
