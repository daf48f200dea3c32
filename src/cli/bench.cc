// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "bench/machine.hpp"
#include "bench/memory.hpp"
#include "bench/on_demand.hpp"
#include "bench/report.hpp"
#include "cli/threads.hpp"
#include "cli/verbs.hpp"
#include "headgate/runtime.hpp"
#include "io/staged_file.hpp"

namespace headgate::cli {
namespace {

struct BenchArguments {
  std::string filter;
  std::string json;
  std::string on_demand;
  int threads = 0;
  std::optional<int> repeat;
  double min_time = 0.5;
  bool quick = false;
  bool list = false;
  bool memory_probe = false;
};

std::regex compile_filter(const std::string& pattern) {
  constexpr std::size_t kMaxPattern = 1000;  // std::regex compiles by recursion
  if (pattern.size() > kMaxPattern) {
    throw UsageError(fmt::format("--filter: {} characters, at most {} allowed", pattern.size(), kMaxPattern));
  }
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& e) {
    throw UsageError(fmt::format("--filter: \"{}\" is not a regular expression ({})", pattern, e.what()));
  }
}

/// What the filter leaves: a ratio stays when both of its cases do.
std::vector<bench::BenchGroup> select(const std::vector<bench::BenchGroup>& groups, const std::regex& filter) {
  std::vector<bench::BenchGroup> out;
  for (const bench::BenchGroup& group : groups) {
    bench::BenchGroup kept;
    std::vector<std::optional<std::size_t>> place(group.cases.size());
    for (std::size_t i = 0; i < group.cases.size(); ++i) {
      if (!std::regex_search(group.cases[i].name, filter)) continue;
      place[i] = kept.cases.size();
      kept.cases.push_back(group.cases[i]);
    }
    for (const bench::BenchRatio& ratio : group.ratios) {
      const auto a = place[ratio.numerator];
      const auto b = place[ratio.denominator];
      if (a && b) kept.ratios.push_back({*a, *b, ratio.floor});
    }
    if (!kept.cases.empty()) out.push_back(std::move(kept));
  }
  return out;
}

void print_now(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

bench::MachineFacts measure_machine(const std::string& isa, int threads, bench::Yardsticks& yardsticks) {
  bench::MachineFacts facts;
  facts.cpu = bench::cpu_name();
  facts.isa = isa;
  facts.threads = threads;
  facts.read_gbps = bench::read_gbps(isa, threads);
  facts.sgemm_gflops = bench::sgemm_gflops(threads);
  facts.fma_peak_f64_gflops = yardsticks.best_gflops(DType::f64, threads);
  facts.fma_peak_gflops = yardsticks.best_gflops(DType::f32, threads);
  return facts;
}

/// The end of a run knows more than its start: every rate is the best that any part of the run has seen.
void settle_machine(bench::MachineFacts& facts, bench::Yardsticks& yardsticks) {
  facts.read_gbps = std::max(facts.read_gbps, bench::read_gbps(facts.isa, facts.threads));
  facts.sgemm_gflops = std::max(facts.sgemm_gflops, bench::sgemm_gflops(facts.threads));
  facts.fma_peak_f64_gflops = yardsticks.best_gflops(DType::f64, facts.threads);
  facts.fma_peak_gflops = yardsticks.best_gflops(DType::f32, facts.threads);
}

int list_cases(const std::vector<bench::BenchGroup>& groups, bool with_memory) {
  for (const bench::BenchGroup& group : groups) {
    for (const bench::BenchCase& bench_case : group.cases) fmt::print("{}\n", bench_case.name);
  }
  if (with_memory) fmt::print("{}\n", bench::kMemoryCase);
  return kSuccess;
}

bench::BenchSettings settings_of(const BenchArguments& arguments) {
  bench::BenchSettings settings;
  settings.threads = arguments.threads == 0 ? default_threads() : arguments.threads;
  settings.min_seconds = arguments.min_time;
  if (arguments.repeat) settings.min_runs = settings.min_slow_runs = *arguments.repeat;
  if (arguments.quick) {
    settings.min_runs = 3;
    settings.min_slow_runs = 1;
    settings.min_seconds = 0.05;
  }
  return settings;
}

const bench::BenchCase& case_named(const std::vector<bench::BenchGroup>& groups, const std::string& name) {
  for (const bench::BenchGroup& group : groups) {
    for (const bench::BenchCase& bench_case : group.cases) {
      if (bench_case.name == name) return bench_case;
    }
  }
  throw UsageError(fmt::format("--on-demand: no case is named \"{}\"; --list names them", name));
}

int run_bench(const BenchArguments& arguments) {
  const std::string isa = active_target();
  const bench::BenchSettings settings = settings_of(arguments);
  if (arguments.memory_probe) {
    bench::run_memory_probe(settings.threads);
    return kSuccess;
  }
  if (!arguments.on_demand.empty()) {
    const std::vector<bench::BenchGroup> groups = bench::bench_groups(settings.threads);
    bench::run_on_demand(case_named(groups, arguments.on_demand), isa, settings.threads);
    return kSuccess;
  }
  const std::regex filter = compile_filter(arguments.filter);
  const std::vector<bench::BenchGroup> groups = select(bench::bench_groups(settings.threads), filter);
  const bool with_memory = std::regex_search(bench::kMemoryCase, filter);
  if (groups.empty() && !with_memory) {
    throw UsageError(fmt::format("--filter: no case matches \"{}\"; --list names them", arguments.filter));
  }
  if (arguments.list) return list_cases(groups, with_memory);

  std::optional<io::StagedFile> json;  // opened first: a path that takes no file is known before minutes are spent
  if (!arguments.json.empty()) json.emplace(arguments.json);

  bench::BenchReport report;
  bench::Yardsticks yardsticks(isa);
  report.machine = measure_machine(isa, settings.threads, yardsticks);
  print_now(fmt::format("{}\n{}", bench::machine_text(report.machine), bench::table_head()));
  for (const bench::BenchGroup& group : groups) {
    const bench::GroupResult result = bench::run_group(group, settings, yardsticks);
    print_now(bench::table_rows(result));
    report.cases.insert(report.cases.end(), result.cases.begin(), result.cases.end());
    report.ratios.insert(report.ratios.end(), result.ratios.begin(), result.ratios.end());
  }
  if (with_memory) {
    report.memory = bench::measure_memory(settings.threads);
    print_now(bench::memory_row(*report.memory));
  }
  settle_machine(report.machine, yardsticks);
  print_now(fmt::format("\n{}\n{}", bench::machine_text(report.machine), bench::summary_text(report)));
  if (json) {
    const std::string text = bench::report_json(report);
    json->write(text.data(), text.size());
    json->commit();
  }
  return kSuccess;
}

}  // namespace

Verb add_bench(CommandLine& line) {
  auto arguments = std::make_shared<BenchArguments>();
  VerbOptions verb = line.add_verb(
      "bench",
      "Measure kernels and training steps against this machine's own limits\n\n"
      "The limits (FMA peak in the vector width of the kernels, OpenBLAS's sgemm, streaming read) are measured by this "
      "program in the same run; what is compared runs in turns; times are medians.");
  verb.footer(
      "The table:\n"
      "  share  fraction of FMA peak (same dtype and threads, measured between the\n"
      "         runs) at the median time\n"
      "  best   the same at the shortest time\n"
      "  goal   the least share that the project promises on two cores\n"
      "  A : B  the rate of A over that of B, run in turns");
  verb.value("--filter", arguments->filter, "REGEX", "Run only the cases whose names match REGEX (anywhere)");
  verb.value("--json", arguments->json, "FILE", "Write machine facts and results to FILE");
  declare_threads(verb, arguments->threads, "Threads (default: what OpenMP offers)");
  verb.value("--repeat", arguments->repeat, "N",
             "Timed runs of each case, at least (default: 9, or 3 of runs of half a second and more)")
      .range(1, 10000);
  verb.value("--min-time", arguments->min_time, "SECONDS",
             "Seconds spent in each case, at least (default: 0.5); thrice that in compared cases")
      .range(0.0, 600.0);
  verb.flag("--quick", arguments->quick, "Few runs: a glance, not a measurement");
  verb.flag("--list", arguments->list, "Print the names of the cases and stop");
  verb.value("--on-demand", arguments->on_demand, "CASE",
             "Only run CASE, once for each line on stdin, and print the seconds it took");
  verb.flag("--memory-probe", arguments->memory_probe, "").hidden();
  return {"bench", [arguments] { return run_bench(*arguments); }};
}

}  // namespace headgate::cli
