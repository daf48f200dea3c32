// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/io/json.hpp"

namespace headgate::bench {
namespace {

constexpr int kNameWidth = 31;

const char* verdict(bool ok) { return ok ? "ok" : "below"; }

bool holds(const CaseResult& result) { return !result.floor || result.fraction_of_limit() >= *result.floor; }
bool holds(const RatioResult& result) { return !result.floor || result.value >= *result.floor; }
bool holds(const MemoryResult& memory) { return memory.peak_bytes < kMemoryLimit_bytes; }

nlohmann::ordered_json case_json(const CaseResult& result) {
  nlohmann::ordered_json out = {{"name", result.name}};
  out.update(result.facts);
  out.update({{"threads", result.threads},
              {"runs", result.runs},
              {"calls_a_run", result.calls},
              {"ms_median", result.ms_median},
              {"ms_min", result.ms_min},
              {"gflops", result.gflops},
              {"fraction_of_peak", result.fraction_of_peak()},
              {"fraction_of_peak_best", result.best_fraction_of_peak()},
              {"fma_peak_gflops", result.fma_peak_gflops},
              {"fma_peak_gflops_median", result.fma_peak_median_gflops}});
  if (result.read_gb > 0.0) {
    out["read_gb"] = result.read_gb;
    out["read_gbps"] = result.read_gbps;
    out["fraction_of_limit"] = result.fraction_of_limit();
  }
  if (result.floor) {
    out["floor"] = *result.floor;
    out["ok"] = holds(result);
  }
  return out;
}

}  // namespace

std::string machine_text(const MachineFacts& m) {
  return fmt::format(
      "machine   {}, vector target {}, {} thread{}\n"
      "FMA peak  {:.1f} GFLOP/s f32, {:.1f} f64\n"
      "sgemm     {:.1f} GFLOP/s (2048³), {:.0f}% of peak\n"
      "memory    {:.1f} GB/s streaming read\n",
      m.cpu, m.isa, m.threads, m.threads == 1 ? "" : "s", m.fma_peak_gflops, m.fma_peak_f64_gflops, m.sgemm_gflops,
      100.0 * m.sgemm_gflops / m.fma_peak_gflops, m.read_gbps);
}

std::string table_head() {
  const std::string titles = fmt::format("{:<{}} {:>3} {:>9} {:>8} {:>8}  {:>6} {:>6} {:>6}   {}", "case", kNameWidth,
                                         "thr", "ms", "GFLOP/s", "FMA peak", "share", "best", "limit", "goal");
  return titles + "\n" + std::string(titles.size() + 6, '-') + "\n";
}

std::string table_rows(const GroupResult& group) {
  std::string out;
  for (const CaseResult& c : group.cases) {
    out += fmt::format("{:<{}} {:>3} {:>9.3f} {:>8.1f} {:>8.1f}  {:>6.3f} {:>6.3f} {:>6}", c.name, kNameWidth,
                       c.threads, c.ms_median, c.gflops, c.fma_peak_gflops, c.fraction_of_peak(),
                       c.best_fraction_of_peak(), c.read_gb > 0.0 ? fmt::format("{:.3f}", c.fraction_of_limit()) : "");
    if (c.floor) out += fmt::format("   {:.2f} {}", *c.floor, verdict(holds(c)));
    out += "\n";
  }
  for (const RatioResult& r : group.ratios) {
    const std::string what = fmt::format("{} : {}", r.numerator, r.denominator);
    out += fmt::format("  {:<{}}  {:>6.3f} {:>6.3f}", what, kNameWidth + 32, r.value, r.best);
    if (r.floor) out += fmt::format("          {:.3f} {}", *r.floor, verdict(holds(r)));
    out += "\n";
  }
  return out;
}

std::string memory_row(const MemoryResult& memory) {
  constexpr double kMib = 1024.0 * 1024.0;
  return fmt::format("{:<{}} peak resident {:.1f} MiB, forward {:.2f} s, backward {:.2f} s   < {:.0f} MiB {}\n",
                     kMemoryCase, kNameWidth, memory.peak_bytes / kMib, memory.forward_seconds, memory.backward_seconds,
                     kMemoryLimit_bytes / kMib, verdict(holds(memory)));
}

std::string summary_text(const BenchReport& report) {
  std::vector<std::string> missed;
  std::size_t goals = 0;
  for (const CaseResult& c : report.cases) {
    if (!c.floor) continue;
    ++goals;
    if (!holds(c)) missed.push_back(fmt::format("{} {:.3f} < {:.2f}", c.name, c.fraction_of_limit(), *c.floor));
  }
  for (const RatioResult& r : report.ratios) {
    if (!r.floor) continue;
    ++goals;
    if (!holds(r)) {
      missed.push_back(fmt::format("{} : {} {:.3f} < {:.3f}", r.numerator, r.denominator, r.value, *r.floor));
    }
  }
  if (report.memory) {
    ++goals;
    if (!holds(*report.memory)) missed.push_back(fmt::format("{} above the limit", kMemoryCase));
  }
  std::string out = fmt::format("{} of {} goals met\n", goals - missed.size(), goals);
  for (const std::string& line : missed) out += "  below: " + line + "\n";
  return out;
}

std::string report_json(const BenchReport& report) {
  const MachineFacts& m = report.machine;
  nlohmann::ordered_json out;
  out["machine"] = {{"cpu", m.cpu},
                    {"isa", m.isa},
                    {"threads", m.threads},
                    {"fma_peak_gflops", m.fma_peak_gflops},
                    {"fma_peak_f64_gflops", m.fma_peak_f64_gflops},
                    {"sgemm_gflops", m.sgemm_gflops},
                    {"read_gbps", m.read_gbps}};
  out["cases"] = nlohmann::ordered_json::array();
  for (const CaseResult& c : report.cases) out["cases"].push_back(case_json(c));
  out["ratios"] = nlohmann::ordered_json::array();
  for (const RatioResult& r : report.ratios) {
    nlohmann::ordered_json ratio = {
        {"numerator", r.numerator}, {"denominator", r.denominator}, {"value", r.value}, {"best", r.best}};
    if (r.floor) {
      ratio["floor"] = *r.floor;
      ratio["ok"] = holds(r);
    }
    out["ratios"].push_back(std::move(ratio));
  }
  if (report.memory) {
    out["memory"] = {{"name", kMemoryCase},
                     {"peak_bytes", report.memory->peak_bytes},
                     {"limit_bytes", kMemoryLimit_bytes},
                     {"forward_seconds", report.memory->forward_seconds},
                     {"backward_seconds", report.memory->backward_seconds},
                     {"ok", holds(*report.memory)}};
  }
  return io::json_text(out);
}

}  // namespace headgate::bench
