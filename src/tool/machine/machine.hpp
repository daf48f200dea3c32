// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "headgate/tensor.hpp"

// Measures the limits of this machine, with which bench and demo compare the kernels.

namespace headgate::bench {

/// Returns "AMD EPYC 7763 64-Core Processor"; the architecture if the system gives no name.
std::string cpu_name();

/// Returns the best vector target of this CPU that a build can have, compiled here or not.
std::string best_target();

/// Returns the library that multiplies matrices, its version and its kernels.
std::string products_description();

/// Measures FMA peak in GFLOP/s (a fused multiply-add counts 2) of `threads` threads at once, in the vector width of
/// the kernels' target `isa` (headgate::active_target()); dtype f32 or f64. On targets without FMA, measures a
/// multiplication followed by an addition.
class PeakMeter {
 public:
  PeakMeter(const std::string& isa, DType dtype, int threads);

  /// Returns the rate over about a millisecond.
  double window();
  /// Returns the best rate of `windows` windows, because noise only lowers a rate.
  double best_of(int windows);

 private:
  double (*run_)(std::int64_t rounds);
  double flops_per_round_;
  int threads_;
  std::int64_t rounds_;
};

/// Returns the best rate of a few 2048³ f32 matrix products of models on `threads` threads.
double sgemm_gflops(int threads);

/// Measures the streaming read rate, in 1e9 bytes a second, of `threads` threads that share a buffer of 256 MiB.
class ReadMeter {
 public:
  ReadMeter(const std::string& isa, int threads);
  ReadMeter(const ReadMeter&) = delete;
  ReadMeter& operator=(const ReadMeter&) = delete;
  ~ReadMeter();
  /// Returns the rate of one pass. The pass evicts what the caches held before it, except for what remains in the last
  /// level.
  double pass();

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

/// Returns the best rate of twenty passes.
double read_gbps(const std::string& isa, int threads);

}  // namespace headgate::bench
