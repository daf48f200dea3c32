// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/job.hpp"
#include "bench/workload.hpp"

namespace headgate::bench {

struct BenchCase {
  std::string name;
  JobFactory make_job;
  int threads = 0;              ///< 0: as many as the run has
  std::optional<double> floor;  ///< least fraction of FMA peak that the project promises
};

/// Rate of one case over that of another, measured in turns.
struct BenchRatio {
  std::size_t numerator = 0, denominator = 0;  ///< indices in the group
  std::optional<double> floor;                 ///< the least that the project promises
};

/// Cases that run in turns within one loop, so that drift of the machine meets all of them alike.
struct BenchGroup {
  std::vector<BenchCase> cases;
  std::vector<BenchRatio> ratios;
};

/// The promises, and what explains them. Cases for two threads are left out when `threads` is 1.
std::vector<BenchGroup> bench_groups(int threads);

/// Forward and backward at T = S = 32768, one head, D = 64, f32: what the memory promise is about.
CallShape memory_shape();
inline constexpr const char* kMemoryCase = "memory/T32768/D64";
inline constexpr double kMemoryLimit_bytes = 200.0 * 1024 * 1024;

}  // namespace headgate::bench
