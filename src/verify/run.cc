// SPDX-License-Identifier: Apache-2.0
#include "verify/run.hpp"

#include <chrono>

#include "headgate/runtime.hpp"
#include "verify/case.hpp"

namespace headgate::verify {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Checks one problem on every target and updates the errors of each.
std::optional<std::string> check_problem(const CaseSpec& spec, const Kernels& kernels,
                                         std::vector<TargetErrors>& targets) {
  auto errors = targets.begin();
  return check_on_every_target(spec, [&](Case& problem, const std::string& target) -> std::optional<std::string> {
    while (errors->target != target) ++errors;
    if (auto mismatch = check_forward_case(problem, kernels, &errors->forward)) return mismatch;
    if (auto mismatch = check_backward_case(problem, kernels, &errors->backward)) return mismatch;
    if (auto mismatch = check_statistics_case(problem, kernels, &errors->statistics)) return mismatch;
    return check_same_bits(problem, kernels);
  });
}

}  // namespace

RunResult run(const RunOptions& options, const OnProblem& on_problem, const Kernels& kernels) {
  const auto start = Clock::now();
  RunResult result;
  for (const Implementation& each : implementations()) result.targets.push_back({each.name, {}, {}, {}});

  const auto passes = [&](const CaseSpec& spec) {
    const double done = options.problems ? static_cast<double>(result.problems) /
                                               static_cast<double>(options.listed.size() + *options.problems)
                                         : seconds_since(start) / options.seconds;
    on_problem(done, ++result.problems);
    result.mismatch = check_problem(spec, kernels, result.targets);
    return !result.mismatch.has_value();
  };
  const auto wants_another = [&](std::uint64_t random_done) {
    return options.problems ? random_done < *options.problems : seconds_since(start) < options.seconds;
  };
  bool ok = true;
  for (auto spec = options.listed.begin(); ok && spec != options.listed.end(); ++spec) ok = passes(*spec);
  for (std::uint64_t n = 0; ok && wants_another(n); ++n) ok = passes(random_spec(options.seed + n));
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace headgate::verify
