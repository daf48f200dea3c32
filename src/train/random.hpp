// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate::train {

/// SplitMix64's finalizer: a bijection of 64-bit words that mixes every bit into every other.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

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
