// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "library/core/random.hpp"

namespace headgate::generate {

/// How a token is chosen from the logits l(V), in the order of transformers: temperature, top_k, top_p.
struct Sampling {
  /// Tokens have the probabilities softmax(l / temperature). 0: the token of the largest logit, the smallest id of
  /// several; nothing is drawn then.
  double temperature = 0.0;
  /// Of all tokens the k most likely, of equally likely ones those of the smallest ids; 0: all.
  std::int64_t top_k = 0;
  /// Of what top_k left, the most likely tokens up to and including the one with which their sum reaches top_p; 1: all.
  double top_p = 1.0;
  std::uint64_t seed = 1;
};

/// Throws Error: a temperature below 0 or not finite, top_k below 0, top_p not in (0,1].
void check_sampling(const Sampling& sampling);

/// Draws token after token with a generator of its own: the same seed and logits give the same tokens.
class Sampler {
 public:
  /// Throws as check_sampling does.
  explicit Sampler(const Sampling& sampling);

  /// The next token, in [0,V); V at least 1. Throws Error if a logit is not finite.
  std::int32_t next(std::span<const float> logits);

 private:
  void sort_most_likely(std::span<const float> logits, std::size_t from, std::size_t to);
  /// Leaves the first ids of kept_ whose weights reach top_p · total; returns their sum.
  double keep_nucleus(std::span<const float> logits, double total);

  Sampling sampling_;
  SplitMix64 random_;
  std::vector<std::int32_t> kept_;  ///< the tokens to draw from
  std::vector<double> weights_;     ///< (V), of those: their probabilities, relative to that of the most likely one
};

}  // namespace headgate::generate
