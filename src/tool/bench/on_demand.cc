// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/on_demand.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tool/bench/timing.hpp"
#include "tool/machine/machine.hpp"

namespace headgate::bench {
namespace {

constexpr int kPeakSearchWindows = 100;

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace

void run_on_demand(const BenchCase& bench_case, const std::string& isa, int run_threads) {
  const int threads = bench_case.threads == 0 ? run_threads : bench_case.threads;
  const std::unique_ptr<BenchJob> job = bench_case.make_job(threads);
  job->run();
  nlohmann::ordered_json facts = {{"name", bench_case.name}};
  facts.update(job->facts());
  facts.update({{"threads", threads},
                {"flops", job->flops()},
                {"cpu", cpu_name()},
                {"isa", isa},
                {"fma_peak_gflops", PeakMeter(isa, job->compute_dtype(), threads).best_of(kPeakSearchWindows)}});
  print_line(facts.dump());
  for (std::string line; std::getline(std::cin, line);) {
    print_line(fmt::format("{:.9f}", seconds_of([&job] { job->run(); })));
  }
}

}  // namespace headgate::bench
