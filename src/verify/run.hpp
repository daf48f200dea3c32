// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/check.hpp"
#include "verify/spec.hpp"

namespace headgate::verify {

/// Which problems a run checks: a list, and then random ones.
struct RunOptions {
  std::vector<CaseSpec> listed = standard_cases();
  double seconds = 30.0;                  ///< for the whole run; the list is always checked completely
  std::optional<std::uint64_t> problems;  ///< number of random problems, however long they take
  std::uint64_t seed = 1;                 ///< of the first random problem
};

/// The largest errors on one vector target.
struct TargetErrors {
  std::string target;
  WorstError forward, backward, statistics;
};

struct RunResult {
  std::size_t problems = 0;           ///< number of problems checked; a mismatch is in the last one
  std::vector<TargetErrors> targets;  ///< every vector target that this CPU can run
  std::optional<std::string> mismatch;
  double seconds = 0.0;
};

/// Called before each problem: the fraction of the run that is done, and the problem's number, from 1.
using OnProblem = std::function<void(double done, std::size_t number)>;

/// Checks every problem on every vector target, forward and backward, against the oracle, and the bits of one thread
/// against those of three. Stops at the first mismatch. The active target is the same afterwards as before.
RunResult run(const RunOptions& options, const OnProblem& on_problem, const Kernels& kernels = {});

}  // namespace headgate::verify
