// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "models/io/work.hpp"
#include "tool/bench/memory.hpp"
#include "tool/machine/machine_facts.hpp"

namespace headgate::bench {

BenchReport measure_all(const std::vector<BenchGroup>& groups, MemoryCase memory, const std::string& isa,
                        const BenchSettings& settings, const std::function<void(const std::string& text)>& print) {
  PeakMeters peaks(isa);
  BenchReport report;
  report.machine = measure_machine(isa, settings.threads, peaks);
  print(fmt::format("{}\n{}", machine_text(report.machine), table_head()));
  double measured = 0.0;
  for (const BenchGroup& group : groups) {
    io::report_work("measuring ", group.cases.front().name, measured++ / static_cast<double>(groups.size()));
    GroupResult result = run_group(group, settings, peaks);
    for (CaseResult& c : result.cases) {
      if (!c.floor || !c.sgemm_floor) continue;
      c.floor = std::min(*c.floor, *c.sgemm_floor * report.machine.sgemm_gflops / report.machine.fma_peak_gflops);
    }
    print(table_rows(result));
    report.cases.insert(report.cases.end(), result.cases.begin(), result.cases.end());
    report.ratios.insert(report.ratios.end(), result.ratios.begin(), result.ratios.end());
  }
  if (memory == MemoryCase::run) {
    report.memory = measure_memory(settings.threads);
    print(memory_row(*report.memory));
  }
  measure_again(report.machine, peaks);
  print(fmt::format("\n{}\n{}", machine_text(report.machine), summary_text(report)));
  return report;
}

}  // namespace headgate::bench
