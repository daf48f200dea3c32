// SPDX-License-Identifier: Apache-2.0
#include "verify/run.hpp"

#include <algorithm>

#include "headgate/runtime.hpp"
#include "library/core/stopwatch.hpp"
#include "verify/case.hpp"

namespace headgate::verify {
namespace {

TargetErrors& errors_on(std::vector<TargetErrors>& targets, const std::string& target) {
  return *std::find_if(targets.begin(), targets.end(), [&](const TargetErrors& each) { return each.target == target; });
}

/// Checks one attention problem on every backend and vector target. Updates the largest errors of each.
std::optional<std::string> check_problem(const CaseSpec& spec, const Kernels& kernels,
                                         std::vector<TargetErrors>& targets) {
  return check_on_every_target(spec, [&](Case& problem, const std::string& target) -> std::optional<std::string> {
    TargetErrors& errors = errors_on(targets, target);
    if (auto mismatch = check_forward_case(problem, kernels, &errors.forward)) return mismatch;
    if (auto mismatch = check_backward_case(problem, kernels, &errors.backward)) return mismatch;
    if (auto mismatch = check_statistics_case(problem, kernels, &errors.statistics)) return mismatch;
    return check_same_bits(problem, kernels);
  });
}

std::optional<std::string> check_problem(const LinearCaseSpec& spec, const LinearKernels& kernels,
                                         const LinearStatisticsKernels& statistics,
                                         std::vector<TargetErrors>& targets) {
  std::optional<ExpectedLinearFigures> figures;  // the oracle's results, computed once for all targets
  const auto check = [&](LinearCase& problem, const std::string& target) -> std::optional<std::string> {
    TargetErrors& errors = errors_on(targets, target);
    if (auto mismatch = check_linear_forward_case(problem, kernels, &errors.linear_forward)) return mismatch;
    if (auto mismatch = check_linear_backward_case(problem, kernels, &errors.linear_backward)) return mismatch;
    if (!figures) figures.emplace(problem);
    if (auto mismatch = check_linear_statistics_case(problem, *figures, statistics, &errors.linear_statistics))
      return mismatch;
    return check_linear_same_bits(problem, kernels);
  };
  return check_linear_on_every_target(spec, check);
}

/// Checks one problem of the short convolution or of the gated norm on every vector target.
/// Updates the largest errors of each target.
template <class Problem, class Spec, class OwnKernels>
std::optional<std::string> check_passes(const Spec& spec, const OwnKernels& kernels, std::vector<TargetErrors>& targets,
                                        WorstError TargetErrors::*forward, WorstError TargetErrors::*backward) {
  const auto check = [&](Problem& problem, const std::string& target) -> std::optional<std::string> {
    TargetErrors& errors = errors_on(targets, target);
    if (auto mismatch = check_forward_case(problem, kernels, &(errors.*forward))) return mismatch;
    if (auto mismatch = check_backward_case(problem, kernels, &(errors.*backward))) return mismatch;
    return check_same_bits(problem, kernels);
  };
  return check_on_implementations<Problem>(spec, check);
}

std::optional<std::string> check_problem(const ConvolutionCaseSpec& spec, const ConvolutionKernels& kernels,
                                         std::vector<TargetErrors>& targets) {
  return check_passes<ConvolutionCase>(spec, kernels, targets, &TargetErrors::convolution_forward,
                                       &TargetErrors::convolution_backward);
}

std::optional<std::string> check_problem(const NormCaseSpec& spec, const NormKernels& kernels,
                                         std::vector<TargetErrors>& targets) {
  return check_passes<NormCase>(spec, kernels, targets, &TargetErrors::norm_forward, &TargetErrors::norm_backward);
}

}  // namespace

RunResult run(const RunOptions& options, const OnProblem& on_problem, const RunKernels& kernels) {
  constexpr std::uint64_t kOperations = 4;
  const Stopwatch watch;
  RunResult result;
  for (const Implementation& each : implementations()) {
    result.targets.push_back({.target = each.name, .is_plain = each.is_plain_target()});
  }
  const std::size_t listed = options.listed.size() + options.listed_linear.size() + options.listed_convolution.size() +
                             options.listed_norm.size();
  const double seconds = options.seconds.value_or(kDefaultSeconds);
  const auto passes = [&](const auto& spec, const auto&... own_kernels) {
    const double done = options.problems ? static_cast<double>(result.problems) /
                                               static_cast<double>(listed + kOperations * *options.problems)
                                         : watch.seconds() / seconds;
    on_problem(done, ++result.problems);
    result.mismatch = check_problem(spec, own_kernels..., result.targets);
    return !result.mismatch.has_value();
  };
  const auto wants_another = [&](std::uint64_t random_done) {
    return options.problems ? random_done < *options.problems : watch.seconds() < seconds;
  };
  // Takes one problem from each list in turn, so that a run that ends early has covered every operation. The first
  // problem of each list always runs.
  const auto in_time = [&](std::size_t n) { return n == 0 || !options.seconds || watch.seconds() < seconds; };
  const auto listed_passes = [&](const auto& specs, std::size_t n, const auto&... own_kernels) {
    return n >= specs.size() || !in_time(n) || passes(specs[n], own_kernels...);
  };
  const std::size_t longest = std::max({options.listed.size(), options.listed_linear.size(),
                                        options.listed_convolution.size(), options.listed_norm.size()});
  bool ok = true;
  for (std::size_t n = 0; ok && n < longest && in_time(n); ++n) {
    ok = listed_passes(options.listed, n, kernels.attention) &&
         listed_passes(options.listed_linear, n, kernels.linear, kernels.linear_statistics) &&
         listed_passes(options.listed_convolution, n, kernels.convolution) &&
         listed_passes(options.listed_norm, n, kernels.norm);
  }
  if (ok) result.left_out = listed - result.problems;
  for (std::uint64_t n = 0; ok && wants_another(n); ++n) {
    const std::uint64_t seed = options.seed + n;
    ok = passes(random_spec(seed), kernels.attention) &&
         passes(random_linear_spec(seed), kernels.linear, kernels.linear_statistics) &&
         passes(random_convolution_spec(seed), kernels.convolution) && passes(random_norm_spec(seed), kernels.norm);
  }
  result.seconds = watch.seconds();
  return result;
}

}  // namespace headgate::verify
