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
  /// FLOPs of one run.
  virtual double flops() const = 0;
  /// Bytes that one run cannot but read from memory, where reading limits it; 0 for work that caches hold.
  virtual double read_bytes() const { return 0.0; }
  /// f32 or f64: what the FMA peak is measured in.
  virtual DType compute_dtype() const = 0;
  /// The parameters of the work, for the report.
  virtual nlohmann::ordered_json facts() const = 0;
};

/// Makes the job of a case for a number of threads. Its data lives as long as the job.
using JobFactory = std::function<std::unique_ptr<BenchJob>(int threads)>;

}  // namespace headgate::bench
