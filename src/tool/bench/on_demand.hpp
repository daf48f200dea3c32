// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Runs the case once for each line on stdin and prints the seconds of each run.
/// Another program can thus alternate these runs with runs of its own.
/// Before the first run, warms up and prints one line of JSON with the machine, the case and its FLOPs.
void run_on_demand(const BenchCase& bench_case, const std::string& isa, int threads);

}  // namespace headgate::bench
