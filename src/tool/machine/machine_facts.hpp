// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>

#include "tool/machine/machine.hpp"

namespace headgate::bench {

/// Keeps one PeakMeter per dtype and number of threads, with the best rate measured so far. Keeps one ReadMeter per
/// number of threads.
class PeakMeters {
 public:
  explicit PeakMeters(std::string isa) : isa_(std::move(isa)) {}

  /// Returns the FMA rate in GFLOP/s over about a millisecond; dtype is f32 or f64.
  double window(DType dtype, int threads);
  double best_gflops(DType dtype, int threads);
  /// Returns the read rate in GB/s of one pass over memory.
  double read(int threads);

 private:
  struct Entry {
    PeakMeter meter;
    double best_gflops;
  };
  Entry& entry(DType dtype, int threads);

  std::string isa_;
  std::map<std::pair<DType, int>, Entry> entries_;
  std::map<int, ReadMeter> readers_;
};

/// Describes the machine and its limits. Rates are the best measured in any part of a run, because other programs only
/// lower them.
struct MachineFacts {
  std::string cpu, isa;
  int threads = 1;
  double fma_peak_gflops = 0.0;  ///< f32
  double fma_peak_f64_gflops = 0.0;
  double sgemm_gflops = 0.0;
  double read_gbps = 0.0;
};

MachineFacts measure_machine(const std::string& isa, int threads, PeakMeters& peaks);

/// Measures the machine again and keeps the better of each rate.
void measure_again(MachineFacts& facts, PeakMeters& peaks);

}  // namespace headgate::bench
