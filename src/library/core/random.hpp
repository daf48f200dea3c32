// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Increment of SplitMix64's state (Steele, Lea, Flood 2014): 2^64 divided by the golden ratio, rounded to an odd
/// number.
inline constexpr std::uint64_t kSplitMix64Step = 0x9E3779B97F4A7C15U;

/// Returns SplitMix64's output for the state `x`. The function is a bijection of 64-bit words. Every bit of x affects
/// every bit of the result.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += kSplitMix64Step;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

/// The pseudorandom generator SplitMix64. Its numbers are the same on every machine.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    const std::uint64_t out = mix64(state_);
    state_ += kSplitMix64Step;
    return out;
  }
  /// Returns a number in [0,1) with 53 random bits.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// Returns an integer in [0,n), n ≥ 1. The bias is at most n/2^64.
  constexpr std::uint64_t below(std::uint64_t n) { return next() % n; }

 private:
  std::uint64_t state_;
};

}  // namespace headgate
