// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tool/bench/cases.hpp"
#include "tool/bench/report.hpp"
#include "tool/bench/run.hpp"

namespace headgate::bench {

enum class MemoryCase { skipped, run };

/// Measures the machine's rates, runs all groups of cases and the memory case, and measures the machine again.
/// Passes each part of the printed report to `print` as soon as it is known.
BenchReport measure_all(const std::vector<BenchGroup>& groups, MemoryCase memory, const std::string& isa,
                        const BenchSettings& settings, const std::function<void(const std::string& text)>& print);

}  // namespace headgate::bench
