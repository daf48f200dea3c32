// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "headgate/tensor.hpp"

namespace headgate::bench {

/// A piece of work to time, such as one attention call, together with its data.
class BenchJob {
 public:
  BenchJob() = default;
  virtual ~BenchJob() = default;
  BenchJob(const BenchJob&) = delete;
  BenchJob& operator=(const BenchJob&) = delete;

  virtual void run() = 0;
  /// Returns the FLOPs of one run.
  virtual double flops() const = 0;
  /// Returns the bytes of memory traffic in one run.
  /// Returns 0 if memory does not limit the run, for example because the data fits in the caches.
  virtual double read_bytes() const { return 0.0; }
  /// Returns the dtype of the job's arithmetic, f32 or f64. Reports compare the job with the FMA peak of this dtype.
  virtual DType compute_dtype() const = 0;
  /// Returns the job's parameters for the report, such as its shapes and dtype.
  virtual nlohmann::ordered_json facts() const = 0;
};

/// Guaranteed speedup of two threads over one.
inline constexpr double kTwoCoresFloor = 1.8;

/// Creates a case's job for the given number of threads. The job owns its data.
using JobFactory = std::function<std::unique_ptr<BenchJob>(int threads)>;

}  // namespace headgate::bench
