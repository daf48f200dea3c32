// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tool/bench/memory.hpp"
#include "tool/bench/run.hpp"
#include "tool/machine/machine_facts.hpp"

namespace headgate::bench {

struct BenchReport {
  MachineFacts machine;
  std::vector<CaseResult> cases;
  std::vector<RatioResult> ratios;
  std::optional<MemoryResult> memory;
};

std::string machine_text(const MachineFacts& machine);
std::string table_head();
/// Returns a group's lines of the table: one for each case, then one for each ratio.
std::string table_rows(const GroupResult& group);
std::string memory_row(const MemoryResult& memory);
/// Returns a text with the number of guarantees met and a list of the guarantees missed.
std::string summary_text(const BenchReport& report);
std::string report_json(const BenchReport& report);

}  // namespace headgate::bench
