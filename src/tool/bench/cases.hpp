// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tool/bench/job.hpp"
#include "verify/spec.hpp"

namespace headgate::bench {

struct BenchCase {
  std::string name;
  JobFactory make_job;
  int threads = 0;  ///< 0: as many as the run has
  /// The least share of FMA peak, or of the limit where the job reads, that is guaranteed.
  std::optional<double> floor = std::nullopt;
  /// Where this share of the rate of sgemm is less, that is the guarantee.
  std::optional<double> sgemm_floor = std::nullopt;
};

/// The ratio of two cases' rates, which run alternately.
struct BenchRatio {
  std::size_t numerator = 0, denominator = 0;  ///< indices in the group
  std::optional<double> floor;                 ///< the least ratio that the project guarantees
};

/// Cases that run alternately in one loop, so that a slowdown of the machine affects all of them alike.
struct BenchGroup {
  std::vector<BenchCase> cases;
  std::vector<BenchRatio> ratios;
};

/// The cases with a guaranteed rate, and those that explain them. Cases for two threads are left out if `threads` is 1.
std::vector<BenchGroup> bench_groups(int threads);

/// The cases whose names are wanted; a ratio stays when both of its cases do.
std::vector<BenchGroup> select_cases(const std::vector<BenchGroup>& groups,
                                     const std::function<bool(const std::string& name)>& wanted);

/// The case of that name, or null.
const BenchCase* find_case(const std::vector<BenchGroup>& groups, const std::string& name);

/// Forward and backward at T = S = 32768, one head, D = 64, f32: the case of the memory limit.
verify::CaseSpec memory_spec();
inline constexpr const char* kMemoryCase = "memory/T32768/D64";
inline constexpr double kMemoryLimit_bytes = 200.0 * 1024 * 1024;

}  // namespace headgate::bench
