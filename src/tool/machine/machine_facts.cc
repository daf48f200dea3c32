// SPDX-License-Identifier: Apache-2.0
#include "tool/machine/machine_facts.hpp"

#include <algorithm>

namespace headgate::bench {

PeakMeters::Entry& PeakMeters::entry(DType dtype, int threads) {
  constexpr int kFirstWindows = 24;
  const auto found = entries_.find({dtype, threads});
  if (found != entries_.end()) return found->second;
  PeakMeter meter(isa_, dtype, threads);
  const double best = meter.best_of(kFirstWindows);
  return entries_.emplace(std::pair{dtype, threads}, Entry{meter, best}).first->second;
}

double PeakMeters::window(DType dtype, int threads) {
  Entry& e = entry(dtype, threads);
  const double rate = e.meter.window();
  e.best_gflops = std::max(e.best_gflops, rate);
  return rate;
}

double PeakMeters::best_gflops(DType dtype, int threads) { return entry(dtype, threads).best_gflops; }

double PeakMeters::read(int threads) { return readers_.try_emplace(threads, isa_, threads).first->second.pass(); }

MachineFacts measure_machine(const std::string& isa, int threads, PeakMeters& peaks) {
  MachineFacts facts;
  facts.cpu = cpu_name();
  facts.isa = isa;
  facts.threads = threads;
  measure_again(facts, peaks);
  return facts;
}

void measure_again(MachineFacts& facts, PeakMeters& peaks) {
  facts.read_gbps = std::max(facts.read_gbps, read_gbps(facts.isa, facts.threads));
  facts.sgemm_gflops = std::max(facts.sgemm_gflops, sgemm_gflops(facts.threads));
  facts.fma_peak_f64_gflops = peaks.best_gflops(DType::f64, facts.threads);
  facts.fma_peak_gflops = peaks.best_gflops(DType::f32, facts.threads);
}

}  // namespace headgate::bench
