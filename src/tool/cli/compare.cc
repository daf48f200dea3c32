// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tool/cli/json_option.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/reports/compare/report.hpp"
#include "tool/reports/compare/terminal.hpp"

namespace headgate::cli {
namespace {

struct CompareOptions {
  std::vector<std::string> runs;
  std::string out;
  JsonOutput json;
  std::optional<std::int64_t> points;
};

int run_compare(const CompareOptions& o) {
  constexpr std::int64_t kPoints = 1000;
  if (o.points && o.out.empty() && !o.json.wanted()) {
    throw UsageError("--points needs --out, --json or --json-out: what is printed has no such curves");
  }
  check_outputs({{"--out", o.out}, {"--json-out", o.json.file}},
                [&o](InputFiles& inputs) { inputs.add_models("RUN", o.runs); });
  const std::vector<compare::ComparedRun> runs = compare::read_runs(o.runs);
  if (o.out.empty() && !o.json.wanted()) {
    fmt::print("{}", compare::runs_text(runs));
    return kSuccess;
  }
  const nlohmann::ordered_json report =
      compare::report_json(runs, static_cast<std::size_t>(o.points.value_or(kPoints)));
  if (!o.out.empty()) write_output("compare", o.out, compare::report_page(report));
  o.json.write("compare", json_line(report));
  return kSuccess;
}

}  // namespace

Verb add_compare(CommandLine& line) {
  auto o = std::make_shared<CompareOptions>();
  VerbOptions verb = line.add_verb(
      "compare",
      "Training runs side by side: loss, sinks, activations and gates over steps\n\n"
      "RUN is a directory that `headgate train --out RUN` made, or still writes: its metrics.jsonl is read. Without "
      "--out, --json and --json-out the last figures are printed, a line for each run, with charts of the main ones; "
      "'-' stands "
      "where a run does not have a figure.");
  verb.arguments("RUN", o->runs, "A run's directory; several are compared side by side");
  verb.value("--out", o->out, "FILE.html", "Write a page with a chart of every figure: one file that needs no network");
  declare_json(verb, o->json, "what the page shows (docs/reference/training.md)");
  verb.value("--points", o->points, "N",
             "Values of a curve in the page and in JSON, at most (default 1000); of a longer one the lowest and "
             "highest of "
             "each part are kept")
      .range(4, 1 << 20);
  verb.footer(
      "Examples:\n"
      "  headgate compare run-plain run-gated\n"
      "  headgate compare run-plain run-gated --out compare.html\n"
      "  headgate compare runs/* --json-out compare.json");
  return {"compare", [o] { return run_compare(*o); }};
}

}  // namespace headgate::cli
