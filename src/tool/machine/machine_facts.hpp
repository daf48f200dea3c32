// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>

#include "tool/machine/machine.hpp"

namespace headgate::bench {

/// Keeps the objects that measure this machine's rates:
/// - a PeakMeter for each dtype and number of threads, with the highest rate that it has measured
/// - a ReadMeter for each number of threads
class PeakMeters {
 public:
  explicit PeakMeters(std::string isa) : isa_(std::move(isa)) {}

  /// Measures the FMA rate for about a millisecond and returns it in GFLOP/s. dtype is f32 or f64.
  double window(DType dtype, int threads);
  double best_gflops(DType dtype, int threads);
  /// Reads the ReadMeter's buffer once and returns the rate in GB/s.
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

/// Describes the machine and its peak rates.
/// Each rate is the highest of several measurements, because other programs only lower rates.
struct MachineFacts {
  std::string cpu, isa;
  int threads = 1;
  double fma_peak_gflops = 0.0;  ///< f32
  double fma_peak_f64_gflops = 0.0;
  double sgemm_gflops = 0.0;
  double read_gbps = 0.0;
};

MachineFacts measure_machine(const std::string& isa, int threads, PeakMeters& peaks);

/// Measures the machine again. For each rate, keeps the higher of the old and the new value.
void measure_again(MachineFacts& facts, PeakMeters& peaks);

}  // namespace headgate::bench
