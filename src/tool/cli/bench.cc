// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/io/staged_file.hpp"
#include "tool/bench/cases.hpp"
#include "tool/bench/memory.hpp"
#include "tool/bench/on_demand.hpp"
#include "tool/bench/report.hpp"
#include "tool/bench/session.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/progress.hpp"

namespace headgate::cli {
namespace {

struct BenchArguments {
  std::string filter;
  JsonOutput json;
  std::string on_demand;
  int threads = 0;
  std::optional<int> repeat;
  std::optional<double> min_time;
  bool quick = false;
  bool list = false;
  bool memory_probe = false;
};

std::regex compile_filter(const std::string& pattern) {
  constexpr std::size_t kMaxPattern = 1000;  // std::regex compiles recursively: a long pattern could overflow the stack
  if (pattern.size() > kMaxPattern) {
    throw UsageError(fmt::format("--filter: {} characters, at most {} allowed", pattern.size(), kMaxPattern));
  }
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& e) {
    throw UsageError(fmt::format("--filter: \"{}\" is not a regular expression ({})", pattern, e.what()));
  }
}

bench::BenchSettings settings_of(const BenchArguments& arguments) {
  bench::BenchSettings settings;
  settings.threads = arguments.threads == 0 ? default_threads() : arguments.threads;
  if (arguments.quick) {
    settings.min_runs = 3;
    settings.min_slow_runs = 1;
    settings.min_seconds = 0.05;
  }
  settings.min_seconds = arguments.min_time.value_or(settings.min_seconds);
  if (arguments.repeat) settings.min_runs = settings.min_slow_runs = *arguments.repeat;
  return settings;
}

int run_on_demand(const std::string& name, const bench::BenchSettings& settings) {
  const std::vector<bench::BenchGroup> groups = bench::bench_groups(settings.threads);
  const bench::BenchCase* found = bench::find_case(groups, name);
  if (found == nullptr) {
    throw UsageError(fmt::format("--on-demand: no case is named \"{}\"; --list names them", name));
  }
  bench::run_on_demand(*found, active_target(), settings.threads);
  return kSuccess;
}

int list_cases(const std::vector<bench::BenchGroup>& groups, bool with_memory, const JsonOutput& json) {
  std::string lines;
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  const auto add = [&](const std::string& name) {
    lines += name + '\n';
    cases.push_back({{"name", name}});
  };
  for (const bench::BenchGroup& group : groups) {
    for (const bench::BenchCase& bench_case : group.cases) add(bench_case.name);
  }
  if (with_memory) add(bench::kMemoryCase);
  json.write("bench", json_text({{"cases", cases}}));
  if (!json.wanted()) fmt::print("{}", lines);
  return kSuccess;
}

int run_bench(const BenchArguments& arguments) {
  const std::string isa = active_target();  // throws Error if HEADGATE_ISA names an unknown target
  const bench::BenchSettings settings = settings_of(arguments);
  if (arguments.memory_probe) {
    bench::run_memory_probe(settings.threads);
    return kSuccess;
  }
  if (!arguments.on_demand.empty()) return run_on_demand(arguments.on_demand, settings);

  const std::regex filter = compile_filter(arguments.filter);
  const auto wanted = [&filter](const std::string& name) { return std::regex_search(name, filter); };
  const std::vector<bench::BenchGroup> groups = bench::select_cases(bench::bench_groups(settings.threads), wanted);
  const bool with_memory = wanted(bench::kMemoryCase);
  if (groups.empty() && !with_memory) {
    throw UsageError(fmt::format("--filter: no case matches \"{}\"; --list names them", arguments.filter));
  }
  if (arguments.list) return list_cases(groups, with_memory, arguments.json);

  std::optional<io::StagedFile> json;  // opens the file before measuring, so that a bad path fails at once
  if (!arguments.json.file.empty()) json.emplace(arguments.json.file);

  const bench::BenchReport report =
      bench::measure_all(groups, with_memory ? bench::MemoryCase::run : bench::MemoryCase::skipped, isa, settings,
                         [table = arguments.json.print ? stderr : stdout](const std::string& text) {
                           console::ProgressBar::clear_line();
                           if (table == stderr && console::is_quiet()) return;
                           fmt::print(table, "{}", text);
                           std::fflush(table);
                         });
  const std::string text = bench::report_json(report);
  if (json) {
    json->write(text.data(), text.size());
    json->commit();
  }
  if (arguments.json.print) fmt::print("{}", text);
  return kSuccess;
}

}  // namespace

Verb add_bench(CommandLine& line) {
  auto arguments = std::make_shared<BenchArguments>();
  VerbOptions verb = line.add_verb(
      "bench",
      "Measure kernels and training steps against this machine's own limits\n\n"
      "The limits (FMA peak in the vector width of the kernels, the sgemm that models use, streaming read) are "
      "measured by this "
      "program in the same run; cases that are compared run alternately. A timed run is one call, or as many in a row "
      "as take 5 ms where memory does not limit them; times of a call are medians over the runs.");
  verb.footer(
      "The table:\n"
      "  share  fraction of FMA peak (same dtype and threads, measured between the\n"
      "         runs) at the median time\n"
      "  best   the same at the shortest time\n"
      "  limit  where reading memory limits a case: its fraction of streaming read\n"
      "         (measured before each run; the median over the runs) or of FMA\n"
      "         peak, whichever is larger\n"
      "  goal   the least share, or limit, that the project guarantees on two cores\n"
      "  A : B  the rate of A over that of B, run alternately");
  verb.value("--filter", arguments->filter, "REGEX", "Run only the cases whose names match REGEX (anywhere)");
  declare_json(verb, arguments->json, "machine facts and results");
  declare_threads(verb, arguments->threads, "Threads (default: what OpenMP offers)");
  verb.value("--repeat", arguments->repeat, "N",
             "Timed runs of each case, at least (default: 9, or 3 of runs of half a second and more)")
      .range(1, 10000);
  verb.value("--min-time", arguments->min_time, "SECONDS",
             "Seconds spent in each case, at least (default: 0.5); three times that in compared cases")
      .range(0.0, 600.0);
  verb.flag("--quick", arguments->quick, "Few runs, for a rough impression; --repeat and --min-time override it");
  Option list = verb.flag("--list", arguments->list,
                          "Print the names of the cases and stop; with --json as cases, a list of objects with name");
  Option on_demand = verb.value("--on-demand", arguments->on_demand, "CASE",
                                "Only run CASE, once for each line on stdin, and print the seconds it took");
  for (const char* measured : {"--repeat", "--min-time", "--quick"}) {
    list.excludes(verb.declared(measured));
    on_demand.excludes(verb.declared(measured));
  }
  for (const char* other : {"--filter", "--json", "--json-out", "--list"}) on_demand.excludes(verb.declared(other));
  verb.flag("--memory-probe", arguments->memory_probe, "").hidden();
  return {"bench", [arguments] { return run_bench(*arguments); }};
}

}  // namespace headgate::cli
