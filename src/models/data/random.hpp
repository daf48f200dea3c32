// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/core/random.hpp"

namespace headgate::train {

/// Draws random numbers that depend only on (seed, stream, index). A resumed run thus draws the same numbers without
/// saved state.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream, std::int64_t index)
      : state_(mix64(mix64(mix64(seed) ^ stream) ^ static_cast<std::uint64_t>(index))) {}

  std::uint64_t next() { return mix64(state_++); }
  /// Returns a random number in [0, n) for n ≥ 1. The bias of at most n/2^64 is negligible.
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t state_;
};

/// Returns the number to which a permutation of [0, n), chosen by `key`, maps `index`. The permutation is a Feistel
/// network of four rounds on the smallest even number of bits that can hold n − 1. The network is applied repeatedly
/// until the result is below n (cycle walking). On average this takes at most four applications.
inline std::int64_t permuted(std::int64_t index, std::int64_t n, std::uint64_t key) {
  int half = 1;
  while (half < 31 && (std::int64_t{1} << (2 * half)) < n) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = static_cast<std::uint64_t>(index) >> half;
    std::uint64_t right = static_cast<std::uint64_t>(index) & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t mixed = left ^ (mix64(mix64(key ^ round) ^ right) & mask);
      left = right;
      right = mixed;
    }
    index = static_cast<std::int64_t>((left << half) | right);
  } while (index >= n);
  return index;
}

}  // namespace headgate::train
