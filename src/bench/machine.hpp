// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "headgate/tensor.hpp"

// The limits of this machine, measured by the program itself, with which bench and demo compare the kernels.

namespace headgate::bench {

/// "AMD EPYC 7763 64-Core Processor"; the architecture where the system gives no name.
std::string cpu_name();

/// OpenBLAS's own description of its version and kernels.
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

/// Best streaming read rate, in 1e9 bytes a second, over a buffer far larger than the caches, shared by `threads`
/// threads.
double read_gbps(const std::string& isa, int threads);

}  // namespace headgate::bench
