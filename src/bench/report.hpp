// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/memory.hpp"
#include "bench/run.hpp"

namespace headgate::bench {

struct MachineFacts {
  std::string cpu, isa;
  int threads = 1;
  double fma_peak_gflops = 0.0;  ///< f32; the best of the whole run
  double fma_peak_f64_gflops = 0.0;
  double sgemm_gflops = 0.0;
  double read_gbps = 0.0;
};

struct BenchReport {
  MachineFacts machine;
  std::vector<CaseResult> cases;
  std::vector<RatioResult> ratios;
  std::optional<MemoryResult> memory;
};

std::string machine_text(const MachineFacts& machine);
std::string table_head();
/// One line a case, then one a ratio.
std::string table_rows(const GroupResult& group);
std::string memory_row(const MemoryResult& memory);
/// How many promises hold, and which do not.
std::string summary_text(const BenchReport& report);
std::string report_json(const BenchReport& report);

}  // namespace headgate::bench
