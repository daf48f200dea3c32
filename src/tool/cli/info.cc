// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "tool/cli/facts.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/verbs.hpp"

namespace headgate::cli {
namespace {

int run_info(bool json) {
  const std::vector<Fact> facts = machine_facts();
  fmt::print("{}", json ? json_text(fact_object(facts)) : fact_lines(facts));
  return kSuccess;
}

}  // namespace

Verb add_info(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "info",
      "Print the version, the CPU, vector targets, 16-bit products, threads, and what multiplies matrices\n\n"
      "One fact a line: the version; the CPU's name; the vector targets in this build, those of them that this CPU can "
      "run, and the one that kernels use, best first; what `--precision native16` multiplies with; the threads that a "
      "call uses by default; and the "
      "library that multiplies the matrices of models, with its kernels (attention itself uses none).");
  auto json = std::make_shared<bool>(false);
  declare_json(verb, *json, "one object");
  verb.footer(
      "JSON output, the facts above in their order:\n"
      "  version, cpu, target_chosen        strings\n"
      "  backends, targets_compiled,\n"
      "  targets_supported                  lists of strings\n"
      "  native16_products                  a string; null where native16 computes as\n"
      "                                     exact\n"
      "  threads                            a number\n"
      "  matrix_products                    a string\n"
      "\n"
      "Environment:\n"
      "  HEADGATE_ISA     vector target to use, one of those supported\n"
      "  OMP_NUM_THREADS  threads to use by default");
  return {"info", [json] { return run_info(*json); }};
}

}  // namespace headgate::cli
