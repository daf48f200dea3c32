// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace headgate::bench {

/// The measuring loops of one vector target. Each returns a number that depends on all its work, so that the compiler
/// cannot remove any of it.
struct PeakLoops {
  /// `rounds` rounds of independent FMA chains.
  double (*fma_f32)(std::int64_t rounds) = nullptr;
  double (*fma_f64)(std::int64_t rounds) = nullptr;
  std::int64_t flops_per_round_f32 = 0;
  std::int64_t flops_per_round_f64 = 0;
  /// Reads `count` floats, a multiple of kReadBlock, vector-aligned.
  double (*read)(const float* data, std::size_t count) = nullptr;
};

inline constexpr std::size_t kReadBlock = 4096;

/// Loops compiled for the target that Highway calls `isa` in lower case ("avx2"). Throws headgate::Error for a target
/// that this build does not have.
PeakLoops peak_loops(const std::string& isa);

}  // namespace headgate::bench
