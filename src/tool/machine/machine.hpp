// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "headgate/tensor.hpp"

// Measures the limits of this machine, to which bench and demo compare the kernels.

namespace headgate::bench {

/// Returns the CPU's name, such as "AMD EPYC 7763 64-Core Processor", or the architecture if the system gives no name.
std::string cpu_name();

/// Returns the best vector target that this CPU supports, even if this build does not contain it.
std::string best_target();

/// Returns the name, the version and the kernels of the library that multiplies matrices.
std::string products_description();

/// Measures FMA peak in GFLOP/s on `threads` threads at once; a fused multiply-add counts 2. Uses the vector width of
/// the kernels' target `isa` (headgate::active_target()); dtype is f32 or f64. On targets without FMA, measures a
/// multiplication followed by an addition.
class PeakMeter {
 public:
  PeakMeter(const std::string& isa, DType dtype, int threads);

  /// Returns the rate in GFLOP/s over about a millisecond.
  double window();
  /// Returns the best rate of `windows` windows, because noise only lowers a rate.
  double best_of(int windows);

 private:
  double (*run_)(std::int64_t rounds);
  double flops_per_round_;
  int threads_;
  std::int64_t rounds_;
};

/// Returns the best rate, in GFLOP/s, of five 2048³ f32 matrix products on `threads` threads, with the models' GEMM.
double sgemm_gflops(int threads);

/// Measures the streaming read rate, in 1e9 bytes per second, of `threads` threads that share a buffer of 256 MiB.
class ReadMeter {
 public:
  ReadMeter(const std::string& isa, int threads);
  ReadMeter(const ReadMeter&) = delete;
  ReadMeter& operator=(const ReadMeter&) = delete;
  ~ReadMeter();
  /// Returns the rate of one pass over the buffer. The pass evicts the earlier contents of the caches, except for what
  /// remains in the last level.
  double pass();

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

/// Returns the best read rate, in GB/s, of twenty passes over memory.
double read_gbps(const std::string& isa, int threads);

}  // namespace headgate::bench
