// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "headgate/tensor.hpp"

// Measures this machine's peak rates. bench and demo compare the kernels with them.

namespace headgate::bench {

/// Returns the CPU's name, such as "AMD EPYC 7763 64-Core Processor", or the architecture if the system gives no name.
std::string cpu_name();

/// Returns the name of the best vector target that this CPU supports, even if this build does not contain it.
std::string best_target();

/// Returns the name, version and kernels of the matrix product library, such as "oneDNN 2.6.3, avx512_core_bf16".
std::string products_description();

/// Measures FMA peak, the highest rate of fused multiply-adds, on `threads` threads at once.
/// The rate is in GFLOP/s; a fused multiply-add counts 2.
/// `isa` is the vector target of the kernels (headgate::active_target()), and dtype is f32 or f64.
/// On targets without FMA, measures a multiplication followed by an addition.
class PeakMeter {
 public:
  PeakMeter(const std::string& isa, DType dtype, int threads);

  /// Measures for about a millisecond and returns the rate in GFLOP/s.
  double window();
  /// Calls window() `windows` times and returns the highest rate, because other programs only lower rates.
  double best_of(int windows);

 private:
  double (*run_)(std::int64_t rounds);
  double flops_per_round_;
  int threads_;
  std::int64_t rounds_;
};

/// Multiplies 2048 x 2048 f32 matrices five times on `threads` threads, with the GEMM that models use.
/// Returns the highest rate in GFLOP/s.
double sgemm_gflops(int threads);

/// Measures how fast `threads` threads together read a buffer of 256 MiB. The rate is in GB/s (1e9 bytes per second).
class ReadMeter {
 public:
  ReadMeter(const std::string& isa, int threads);
  ReadMeter(const ReadMeter&) = delete;
  ReadMeter& operator=(const ReadMeter&) = delete;
  ~ReadMeter();
  /// Reads the buffer once and returns the rate. Evicts most other data from the caches.
  double pass();

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

/// Returns the highest rate of twenty passes of ReadMeter, in GB/s.
double read_gbps(const std::string& isa, int threads);

}  // namespace headgate::bench
