// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Serves programs that time something else between the runs. Warms up, prints one line of JSON (machine, case, FLOPs),
/// then runs once for each line on stdin and prints the seconds of the run, until stdin ends.
void run_on_demand(const BenchCase& bench_case, const std::string& isa, int threads);

}  // namespace headgate::bench
