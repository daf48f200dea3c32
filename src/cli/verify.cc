// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/progress.hpp"
#include "cli/verbs.hpp"
#include "headgate/runtime.hpp"
#include "verify/case.hpp"
#include "verify/check.hpp"
#include "verify/spec.hpp"

namespace headgate::cli {
namespace {

struct VerifyArguments {
  double seconds = 30.0;
  std::optional<std::uint64_t> problems;  ///< random ones; then time is no limit
  std::uint64_t seed = 1;
};

struct TargetTally {
  std::string name;
  verify::WorstError forward, backward;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Leaves the process on the target that it found.
class TargetGuard {
 public:
  TargetGuard() : before_(active_target()) {}
  TargetGuard(const TargetGuard&) = delete;
  TargetGuard& operator=(const TargetGuard&) = delete;
  ~TargetGuard() { set_target(before_); }

 private:
  std::string before_;
};

/// Runs the calls of check_forward_case and check_backward_case again with another number of threads.
std::optional<std::string> check_same_bits(verify::Case& problem) {
  const auto run = [&problem](int threads) {
    problem.options().threads = threads;
    problem.poison_outputs();
    problem.poison_gradients();
    attention_forward(problem.outputs(), problem.inputs(), problem.options());
    std::vector<std::uint8_t> bytes = problem.output_bytes();
    attention_forward(problem.saving_outputs(), problem.inputs(), problem.options());
    attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(), problem.options());
    const std::vector<std::uint8_t> gradients = problem.gradient_bytes();
    bytes.insert(bytes.end(), gradients.begin(), gradients.end());
    return bytes;
  };
  const int threads = problem.spec().threads;
  const bool same = run(1) == run(3);
  problem.options().threads = threads;
  if (same) return std::nullopt;
  return "1 thread and 3 threads differ: " + verify::describe(problem.spec());
}

/// First mismatch of one problem on the active target.
std::optional<std::string> check_problem(verify::Case& problem, TargetTally& tally) {
  if (auto mismatch = verify::check_forward_case(problem, {}, &tally.forward)) return mismatch;
  if (auto mismatch = verify::check_backward_case(problem, {}, &tally.backward)) return mismatch;
  return check_same_bits(problem);
}

/// One problem on every target, against one answer of the oracle.
std::optional<std::string> check_everywhere(const verify::CaseSpec& spec, std::vector<TargetTally>& tallies) {
  verify::Case problem(spec);
  for (TargetTally& tally : tallies) {
    set_target(tally.name);
    if (auto mismatch = check_problem(problem, tally)) return tally.name + ": " + *mismatch;
  }
  return std::nullopt;
}

int run_verify(const VerifyArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  const TargetGuard guard;
  std::vector<TargetTally> tallies;
  std::string names;
  for (const std::string& name : supported_targets()) {
    tallies.push_back({name, {}, {}});
    names += " " + name;
  }
  const std::vector<verify::CaseSpec> listed = verify::standard_cases();
  const std::string extent =
      arguments.problems
          ? fmt::format("{} random ones from seed {}", *arguments.problems, arguments.seed)
          : fmt::format("random ones from seed {} until {:g} s have passed", arguments.seed, arguments.seconds);
  fmt::print("targets   {}\nproblems  {} listed, then {}\n", names.substr(1), listed.size(), extent);
  std::fflush(stdout);

  ProgressBar bar;
  std::size_t done = 0;
  const auto fails = [&](const verify::CaseSpec& spec) {
    const double fraction = arguments.problems
                                ? static_cast<double>(done) / static_cast<double>(listed.size() + *arguments.problems)
                                : seconds_since(start) / arguments.seconds;
    bar.show(fraction, fmt::format("problem {}", done + 1));
    const auto mismatch = check_everywhere(spec, tallies);
    if (mismatch) {
      bar.clear();
      fmt::print(stderr, "headgate verify: problem {}, {}\n", done + 1, *mismatch);
    }
    ++done;
    return mismatch.has_value();
  };
  for (const verify::CaseSpec& spec : listed) {
    if (fails(spec)) return kCheckFailed;
  }
  const auto goes_on = [&](std::uint64_t random_done) {
    return arguments.problems ? random_done < *arguments.problems : seconds_since(start) < arguments.seconds;
  };
  for (std::uint64_t n = 0; goes_on(n); ++n) {
    if (fails(verify::random_spec(arguments.seed + n))) return kCheckFailed;
  }
  bar.clear();
  fmt::print("\ntarget    largest error, in units of the tolerance (rounding to storage alone reaches 1)\n");
  for (const TargetTally& tally : tallies) {
    fmt::print("{:<8}  forward {:.2f}, backward {:.2f}: ok\n", tally.name, tally.forward.ratio, tally.backward.ratio);
  }
  fmt::print(
      "\n{} problems, forward and backward, agree with the oracle on {} target{}, with the same bits for 1 and "
      "3 threads ({:.1f} s)\n",
      done, tallies.size(), tallies.size() == 1 ? "" : "s", seconds_since(start));
  return kSuccess;
}

}  // namespace

Verb add_verify(CommandLine& line) {
  auto arguments = std::make_shared<VerifyArguments>();
  VerbOptions verb = line.add_verb(
      "verify",
      "Check the kernels against the f64 oracle on this machine\n\n"
      "Runs a fixed list of problems and then random ones, forward and backward, on every vector target that this CPU "
      "can run, and compares every element with the oracle by the rule of docs/NUMERICS.md, and the bits of one thread "
      "with those of three. Stops at the first mismatch, with exit status 1.");
  const Option seconds = verb.value("--seconds", arguments->seconds, "N",
                                    "Time for the whole run (default 30); the list always runs whole")
                             .range(0.0, 86400.0);
  verb.value("--problems", arguments->problems, "N",
             "Random problems to run, however long they take, in place of --seconds")
      .range(0, 1'000'000'000)
      .excludes(seconds);
  verb.value("--seed", arguments->seed, "N", "First seed of the random problems (default 1)");
  return {"verify", [arguments] { return run_verify(*arguments); }};
}

}  // namespace headgate::cli
