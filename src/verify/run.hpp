// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/check.hpp"
#include "verify/gated_norm_case.hpp"
#include "verify/linear_attention_check.hpp"
#include "verify/linear_attention_spec.hpp"
#include "verify/linear_statistics_check.hpp"
#include "verify/short_convolution_case.hpp"
#include "verify/spec.hpp"

namespace headgate::verify {

inline constexpr double kDefaultSeconds = 30.0;

/// Which problems a run checks: lists, and then random ones, of each operation in turn.
struct RunOptions {
  std::vector<CaseSpec> listed = standard_cases();
  std::vector<LinearCaseSpec> listed_linear = standard_linear_cases();
  std::vector<ConvolutionCaseSpec> listed_convolution = standard_convolution_cases();
  std::vector<NormCaseSpec> listed_norm = standard_norm_cases();
  /// For the whole run, which ends with the problem that exceeds them, but has one of each operation. Empty: the lists,
  /// and random problems until kDefaultSeconds.
  std::optional<double> seconds;
  std::optional<std::uint64_t> problems;  ///< number of random problems of each operation, however long they take
  std::uint64_t seed = 1;                 ///< of the first random problem of each operation
};

/// The largest errors on one vector target.
struct TargetErrors {
  std::string target;
  bool runs_linear = false;  ///< whether operations other than attention run there as on a target of its own
  WorstError forward{}, backward{}, statistics{};
  WorstError linear_forward{}, linear_backward{}, linear_statistics{};
  WorstError convolution_forward{}, convolution_backward{};
  WorstError norm_forward{}, norm_backward{};
};

/// The functions that are checked: the library's own, or replacements in tests of the run.
struct RunKernels {
  Kernels attention = {};
  LinearKernels linear = {};
  LinearStatisticsKernels linear_statistics = {};
  ConvolutionKernels convolution = {};
  NormKernels norm = {};
};

struct RunResult {
  std::size_t problems = 0;           ///< number of problems checked; a mismatch is in the last one
  std::size_t left_out = 0;           ///< listed problems for which the seconds did not suffice
  std::vector<TargetErrors> targets;  ///< every vector target that this CPU can run
  std::optional<std::string> mismatch;
  double seconds = 0.0;
};

/// Called before each problem: the fraction of the run that is done, and the problem's number, from 1.
using OnProblem = std::function<void(double done, std::size_t number)>;

/// Checks every problem on every vector target, forward and backward, against the oracle, and the bits of one thread
/// against those of three. Stops at the first mismatch. The active target is the same afterwards as before.
RunResult run(const RunOptions& options, const OnProblem& on_problem, const RunKernels& kernels = {});

}  // namespace headgate::verify
