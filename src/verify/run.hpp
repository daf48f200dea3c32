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

/// Selects the problems of a run: first the listed problems, then random ones. Operations alternate.
struct RunOptions {
  std::vector<CaseSpec> listed = standard_cases();
  std::vector<LinearCaseSpec> listed_linear = standard_linear_cases();
  std::vector<ConvolutionCaseSpec> listed_convolution = standard_convolution_cases();
  std::vector<NormCaseSpec> listed_norm = standard_norm_cases();
  /// Time limit of the run in seconds, checked between problems. At least one problem of each operation is checked.
  /// If empty, checks all listed problems, then random problems until kDefaultSeconds.
  std::optional<double> seconds;
  std::optional<std::uint64_t> problems;  ///< number of random problems of each operation, regardless of time
  std::uint64_t seed = 1;                 ///< seed of the first random problem of each operation
};

/// The largest errors found on one vector target.
struct TargetErrors {
  std::string target;
  bool is_plain = false;  ///< true if this target also runs exact linear attention, the convolution and the norm
  WorstError forward{}, backward{}, statistics{};
  WorstError linear_forward{}, linear_backward{}, linear_statistics{};
  WorstError convolution_forward{}, convolution_backward{};
  WorstError norm_forward{}, norm_backward{};
};

/// The functions to check. By default, these are the functions of the library; tests of the run replace them.
struct RunKernels {
  Kernels attention = {};
  LinearKernels linear = {};
  LinearStatisticsKernels linear_statistics = {};
  ConvolutionKernels convolution = {};
  NormKernels norm = {};
};

struct RunResult {
  std::size_t problems = 0;           ///< number of problems checked; the first mismatch ends the run
  std::size_t left_out = 0;           ///< number of listed problems not checked for lack of time
  std::vector<TargetErrors> targets;  ///< one entry for every implementation that this CPU can run
  std::optional<std::string> mismatch;
  double seconds = 0.0;
};

/// Function called before each problem. `done` is the completed fraction of the run; `number` counts problems from 1.
using OnProblem = std::function<void(double done, std::size_t number)>;

/// Checks every problem on every vector target. Compares forward and backward passes with the oracle. Checks that
/// results are bitwise identical with one thread and with three. Stops at the first mismatch. Restores the active
/// target.
RunResult run(const RunOptions& options, const OnProblem& on_problem, const RunKernels& kernels = {});

}  // namespace headgate::verify
