// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
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
  std::string meanings, keys;
  for (const MachineFact& row : machine_fact_rows()) {
    meanings += fmt::format("{}{}", meanings.empty() ? "" : "; ", row.meaning);
    keys += fmt::format("  {:<18} {}\n", Fact{row.label, nullptr}.key(), row.type);
  }
  VerbOptions verb = line.add_verb(
      "info",
      fmt::format("Print the version, the CPU, backends, vector targets, 16-bit products, threads, and what multiplies "
                  "matrices\n\nOne fact a line: {}.",
                  meanings));
  auto json = std::make_shared<bool>(false);
  declare_json(verb, *json, "one object");
  verb.footer(
      fmt::format("JSON output, the facts above in their order:\n{}\n"
                  "Environment:\n"
                  "  HEADGATE_ISA     vector target to use, one of those supported\n"
                  "  OMP_NUM_THREADS  threads to use by default",
                  keys));
  return {"info", [json] { return run_info(*json); }};
}

}  // namespace headgate::cli
