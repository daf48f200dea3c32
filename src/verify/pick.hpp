// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>

// Helpers that draw random specs of test problems.

namespace headgate::verify {

/// A function pick(n) that returns a number in [0, n). The number 0 stands for the simplest choice.
using Pick = std::function<std::int64_t(std::int64_t)>;

template <typename T, std::size_t N>
T one_of(const Pick& pick, const std::array<T, N>& choices) {
  return choices[pick(N)];
}

/// Draws a spec with draw(pick), where `pick` returns random numbers seeded with `seed`. Sets the spec's seed to
/// `seed`.
template <class Draw>
auto drawn_at_random(std::uint64_t seed, const Draw& draw) {
  std::mt19937_64 random(seed);
  auto spec =
      draw([&random](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); });
  spec.seed = seed;
  return spec;
}

inline bool maybe(const Pick& pick, std::int64_t one_in) { return pick(one_in) == one_in - 1; }

/// Head widths around multiples of the vector length.
inline constexpr std::array<std::int64_t, 18> kWidths{1,  2,  3,  4,  5,  8,  12, 16,  17,
                                                      24, 31, 32, 48, 64, 72, 80, 128, 256};

}  // namespace headgate::verify
