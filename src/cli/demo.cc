// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/demo_parts.hpp"
#include "cli/verbs.hpp"
#include "headgate/runtime.hpp"

namespace headgate::cli {
namespace {

struct DemoArguments {
  std::string examples = "examples";
  int threads = 0;
};

int run_demo(const DemoArguments& arguments) {
  const int threads = arguments.threads == 0 ? default_threads() : arguments.threads;
  const bool ok = show_worked_problems(arguments.examples) && show_layer(threads);
  return ok ? kSuccess : kCheckFailed;
}

}  // namespace

Verb add_demo(CLI::App& root) {
  auto arguments = std::make_shared<DemoArguments>();
  CLI::App* app = root.add_subcommand(
      "demo",
      "Show the four worked problems and a layer of real size\n\n"
      "Solves the worked problems and holds them against their published outputs; then runs gated attention with 16 "
      "heads of 128 over 4096 tokens, causal, in bf16, forward and backward, shows its speed against this machine's "
      "limits and checks sampled rows against the f64 oracle.");
  app->add_option("--examples", arguments->examples, "Where the worked problems lie (default: examples)")
      ->option_text("DIR");
  app->add_option("--threads", arguments->threads, "Threads (default: what OpenMP offers)")
      ->option_text("N")
      ->check(CLI::Range(1, 1024));
  return {app, [arguments] { return run_demo(*arguments); }};
}

}  // namespace headgate::cli
