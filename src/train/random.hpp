// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/random.hpp"

namespace headgate::train {

/// Random numbers that depend on (seed, stream, index) alone: what a run draws at a step needs no state to be resumed.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream, std::uint64_t index)
      : state_(mix64(mix64(mix64(seed) ^ stream) ^ index)) {}

  std::uint64_t next() { return mix64(state_++); }
  /// In [0, n), n ≥ 1; the bias of at most n/2^64 is of no account.
  std::uint64_t below(std::uint64_t n) { return next() % n; }

 private:
  std::uint64_t state_;
};

/// A permutation of [0, n) chosen by `key`: the place of `index`. Four Feistel rounds on the next even number of bits,
/// walked until they land below n (at most four times on average).
inline std::uint64_t permuted(std::uint64_t index, std::uint64_t n, std::uint64_t key) {
  int half = 1;
  while (half < 31 && (std::uint64_t{1} << (2 * half)) < n) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t turned = left ^ (mix64(mix64(key ^ round) ^ right) & mask);
      left = right;
      right = turned;
    }
    index = (left << half) | right;
  } while (index >= n);
  return index;
}

}  // namespace headgate::train
