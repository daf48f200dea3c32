// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Times runs on request, for programs that time something else between the runs. Warms up and prints one line of JSON
/// (machine, case, FLOPs). Then, for each line on stdin until it ends, runs once and prints the seconds of the run.
void run_on_demand(const BenchCase& bench_case, const std::string& isa, int threads);

}  // namespace headgate::bench
