// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "headgate/tensor.hpp"

// The limits of this machine, measured by the program itself, with which bench and demo compare the kernels.

namespace headgate::bench {

/// "AMD EPYC 7763 64-Core Processor"; the architecture where the system gives no name.
std::string cpu_name();

/// OpenBLAS's own description of its version and kernels. Throws Error where OpenBLAS cannot be loaded.
std::string blas_description();

/// Measures FMA peak in GFLOP/s (a fused multiply-add counts 2) of `threads` threads at once, in the vector width of
/// the kernels' target `isa` (headgate::active_target()); dtype f32 or f64. On targets without FMA it is the rate of a
/// multiplication and an addition.
class PeakMeter {
 public:
  PeakMeter(const std::string& isa, DType dtype, int threads);

  /// The rate over about a millisecond.
  double window();
  /// The best rate of `windows` windows: noise only lowers a rate.
  double best_of(int windows);

 private:
  double (*run_)(std::int64_t rounds);
  double flops_per_round_;
  int threads_;
  std::int64_t rounds_;
};

/// Best rate of a few 2048³ matrix products by OpenBLAS on `threads` threads.
double sgemm_gflops(int threads);

/// Measures the streaming read rate, in 1e9 bytes a second, of `threads` threads that share a buffer of 256 MiB.
class ReadMeter {
 public:
  ReadMeter(const std::string& isa, int threads);
  ReadMeter(const ReadMeter&) = delete;
  ReadMeter& operator=(const ReadMeter&) = delete;
  ~ReadMeter();
  /// The rate of one pass. What the caches held before it is gone from them, but for what the last level spares.
  double pass();

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

/// The best of twenty passes.
double read_gbps(const std::string& isa, int threads);

}  // namespace headgate::bench
