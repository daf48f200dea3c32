// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace headgate::bench {

/// Loops that measure peak rates, compiled for one vector target; T is float or double.
/// Each function returns a number that depends on all work of its loop, so that the compiler cannot remove the loop.
template <typename T>
struct PeakLoops {
  /// Runs `rounds` rounds. Each round makes one FMA in each of several independent chains.
  double (*fma)(std::int64_t rounds);
  std::int64_t flops_per_round;
  /// Reads `count` elements from vector-aligned memory; `count` is a multiple of kReadBlock.
  double (*read)(const T* data, std::int64_t count);
};

inline constexpr std::int64_t kReadBlock = 4096;

/// Returns the loops that measure this CPU's peak rates, compiled for the vector target `isa`.
/// Throws headgate::Error if the CPU does not support this target.
template <typename T>
PeakLoops<T> peak_loops(const std::string& isa);

}  // namespace headgate::bench
