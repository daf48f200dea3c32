// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "headgate/attention.hpp"

namespace headgate::reference {

/// Computes the random number generator Philox 4x32-10 (Salmon et al., SC 2011) for one counter.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32U) ^ counter[1] ^ low, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32U) ^ counter[3] ^ high, static_cast<std::uint32_t>(a)};
    low += 0x9E3779B9U;
    high += 0xBB67AE85U;
  }
  return counter;
}

/// Returns the dropout factor of the weight of sequence n, query head h, query i and key j: 0, or 1 / (1 − p) if the
/// weight is kept.
inline double dropout_factor(const AttentionOptions& options, std::int64_t n, std::int64_t h, std::int64_t i,
                             std::int64_t j) {
  if (options.dropout <= 0.0) return 1.0;
  const std::array<std::uint32_t, 4> random =
      philox({static_cast<std::uint32_t>(j / 32 * 8 + j % 8), static_cast<std::uint32_t>(i),
              static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(n)},
             static_cast<std::uint64_t>(options.dropout_seed));
  const double x = random[static_cast<std::size_t>(j % 32 / 8)];
  return x < std::round(options.dropout * 0x1p32) ? 0.0 : 1.0 / (1.0 - options.dropout);
}

}  // namespace headgate::reference
