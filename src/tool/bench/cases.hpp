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
  int threads = 0;  ///< number of threads; 0: BenchSettings::threads
  /// Guaranteed share of the FMA peak (peak rate of fused multiply-adds).
  /// For a memory-bound job, a share of the memory read rate also counts.
  std::optional<double> floor = std::nullopt;
  /// Alternative to `floor`, as a share of the machine's sgemm rate. It counts only if `floor` is set too.
  /// The case passes if it reaches the lower of the two rates.
  std::optional<double> sgemm_floor = std::nullopt;
};

/// Compares the FLOP rates of two cases that run alternately.
struct BenchRatio {
  std::size_t numerator = 0, denominator = 0;  ///< indices of the cases in the group
  std::optional<double> floor;                 ///< guaranteed ratio of the two rates, if any
};

/// Cases that run alternately, so that a slowdown of the machine affects all cases.
struct BenchGroup {
  std::vector<BenchCase> cases;
  std::vector<BenchRatio> ratios;
};

/// Returns the groups of all cases. Some cases have a guaranteed rate. The other cases are measured for comparison.
/// If `threads` is 1, omits the groups that compare one thread with two.
std::vector<BenchGroup> bench_groups(int threads);

/// Returns the cases of `groups` for which wanted(name) is true. Keeps a BenchRatio if both of its cases stay.
std::vector<BenchGroup> select_cases(const std::vector<BenchGroup>& groups,
                                     const std::function<bool(const std::string& name)>& wanted);

/// Returns the case named `name`, or null.
const BenchCase* find_case(const std::vector<BenchGroup>& groups, const std::string& name);

/// Returns the spec of the memory case: forward and backward at T = S = 32768, one head, D = 64, f32.
verify::CaseSpec memory_spec();
inline constexpr const char* kMemoryCase = "memory/T32768/D64";
inline constexpr double kMemoryLimit_bytes = 200.0 * 1024 * 1024;

}  // namespace headgate::bench
