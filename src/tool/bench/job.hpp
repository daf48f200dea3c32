// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "headgate/tensor.hpp"

namespace headgate::bench {

/// A unit of work that bench times, with its data.
class BenchJob {
 public:
  BenchJob() = default;
  virtual ~BenchJob() = default;
  BenchJob(const BenchJob&) = delete;
  BenchJob& operator=(const BenchJob&) = delete;

  virtual void run() = 0;
  /// Returns the FLOPs of one run.
  virtual double flops() const = 0;
  /// Returns the bytes that one run must read from memory, or read and write, if that limits it; 0 if the data fits in
  /// the caches.
  virtual double read_bytes() const { return 0.0; }
  /// Returns the type in which FMA peak is measured for this job: f32 or f64.
  virtual DType compute_dtype() const = 0;
  /// Returns the parameters of the work, for the report.
  virtual nlohmann::ordered_json facts() const = 0;
};

/// Guaranteed ratio of the rate on two cores to the rate on one core.
inline constexpr double kTwoCoresFloor = 1.8;

/// Creates a case's job for the given number of threads. The job owns its data.
using JobFactory = std::function<std::unique_ptr<BenchJob>(int threads)>;

}  // namespace headgate::bench
