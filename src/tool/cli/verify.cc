// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/progress.hpp"
#include "verify/run.hpp"

namespace headgate::cli {
namespace {

void print_passes(const std::string& target, const char* operation, const verify::WorstError& forward,
                  const verify::WorstError& backward, const verify::WorstError* statistics = nullptr) {
  fmt::print("{:<16}  {:<17} forward {:.2f}, backward {:.2f}{}: ok\n", target, operation, forward.ratio, backward.ratio,
             statistics == nullptr ? "" : fmt::format(", statistics {:.2f}", statistics->ratio));
}

void print_errors(const std::vector<verify::TargetErrors>& targets) {
  fmt::print(
      "\ntarget            operation         largest error, in units of the tolerance (rounding to storage alone "
      "reaches 1)\n");
  for (const verify::TargetErrors& errors : targets) {
    print_passes(errors.target, "attention", errors.forward, errors.backward, &errors.statistics);
    if (errors.is_plain || errors.linear_forward.ratio > 0.0) {
      print_passes(errors.target, "linear attention", errors.linear_forward, errors.linear_backward,
                   &errors.linear_statistics);
    }
    if (!errors.is_plain) continue;
    print_passes(errors.target, "short convolution", errors.convolution_forward, errors.convolution_backward);
    print_passes(errors.target, "gated norm", errors.norm_forward, errors.norm_backward);
  }
}

nlohmann::ordered_json errors_json(const verify::WorstError& forward, const verify::WorstError& backward) {
  return {{"forward", forward.ratio}, {"backward", backward.ratio}};
}

nlohmann::ordered_json result_json(const verify::RunResult& result) {
  nlohmann::ordered_json targets = nlohmann::ordered_json::array();
  for (const verify::TargetErrors& errors : result.targets) {
    nlohmann::ordered_json target = {{"target", errors.target},
                                     {"attention", errors_json(errors.forward, errors.backward)}};
    target["attention"]["statistics"] = errors.statistics.ratio;
    if (errors.is_plain || errors.linear_forward.ratio > 0.0) {
      target["linear_attention"] = errors_json(errors.linear_forward, errors.linear_backward);
      target["linear_attention"]["statistics"] = errors.linear_statistics.ratio;
    }
    if (errors.is_plain) {
      target["short_convolution"] = errors_json(errors.convolution_forward, errors.convolution_backward);
      target["gated_norm"] = errors_json(errors.norm_forward, errors.norm_backward);
    }
    targets.push_back(std::move(target));
  }
  return {{"problems", result.problems},
          {"left_out", result.left_out},
          {"seconds", result.seconds},
          {"mismatch", result.mismatch ? nlohmann::ordered_json(*result.mismatch) : nlohmann::ordered_json(nullptr)},
          {"targets", std::move(targets)}};
}

void print_plan(const verify::RunOptions& options) {
  const std::string extent = options.problems
                                 ? fmt::format("{} random ones of each from seed {}", *options.problems, options.seed)
                                 : fmt::format("random ones of each from seed {}, until {:g} s have passed",
                                               options.seed, options.seconds.value_or(verify::kDefaultSeconds));
  fmt::print(
      "targets   {}\nproblems  {} of attention, {} of linear attention, {} of the short convolution and {} of the "
      "gated "
      "norm listed, then {}\n",
      fmt::join(supported_targets(), " "), options.listed.size(), options.listed_linear.size(),
      options.listed_convolution.size(), options.listed_norm.size(), extent);
  std::fflush(stdout);
}

int run_verify(const verify::RunOptions& options, bool json) {
  if (!json && !console::is_quiet()) print_plan(options);
  console::ProgressBar bar;
  const verify::RunResult result = verify::run(options, [&bar](double done, std::size_t number) {
    bar.show(done, {.text = fmt::format("problem {}", number)});
  });
  bar.clear();
  if (json) fmt::print("{}", json_text(result_json(result)));
  if (result.mismatch) {
    fmt::print(stderr, "headgate verify: problem {}, {}\n", result.problems, *result.mismatch);
    return kCheckFailed;
  }
  if (json) return kSuccess;
  print_errors(result.targets);
  fmt::print(
      "\n{} problems, forward, backward and statistics, agree with the oracle on every target, with the same bits for "
      "1 and 3 threads ({:.1f} s)\n",
      result.problems, result.seconds);
  if (result.left_out > 0) fmt::print("{} listed problems were left out: the time was up\n", result.left_out);
  return kSuccess;
}

}  // namespace

Verb add_verify(CommandLine& line) {
  auto options = std::make_shared<verify::RunOptions>();
  VerbOptions verb = line.add_verb(
      "verify",
      "Check the kernels against the f64 oracle on this machine\n\n"
      "Runs fixed lists of problems, one of each operation in turn, and then random ones, of attention and linear "
      "attention (forward, backward and "
      "statistics), the short convolution and the gated norm (forward and backward) in turn, on every vector target "
      "that "
      "this CPU can run, those of native16 on each kind of 16-bit products that it has. Compares every element with "
      "the oracle by the rule of "
      "docs/reference/numerics.md, and the bits of one thread with those of three. Stops at the first mismatch, with "
      "exit status 1.");
  const Option seconds =
      verb.value(
              "--seconds", options->seconds, "N",
              "End after N seconds, within the lists too. Without it, the lists run whole, and random problems follow "
              "until 30 seconds have passed")
          .range(0.0, 86400.0);
  verb.value("--problems", options->problems, "N",
             "Random problems of each operation, however long they take, in place of --seconds")
      .range(0, 1'000'000'000)
      .excludes(seconds);
  verb.value("--seed", options->seed, "N", "First seed of the random problems (default 1)");
  auto json = std::make_shared<bool>(false);
  declare_json(verb, *json, "one object");
  verb.footer(
      "JSON output:\n"
      "  problems, seconds  what the run took\n"
      "  left_out           listed problems for which --seconds did not suffice\n"
      "  mismatch           a string; null if all problems agree\n"
      "  targets            a list of objects: target, and of each operation the\n"
      "                     largest errors, forward, backward and statistics, in units\n"
      "                     of the tolerance");
  return {"verify", [options, json] { return run_verify(*options, *json); }};
}

}  // namespace headgate::cli
