// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headgate::train {

/// Counts loss spikes. A step is high if its loss exceeds the mean of the previous losses, at most kWindow of them, by
/// more than kDeviations standard deviations and by more than kLeast nats. Consecutive high steps are one spike.
class SpikeCounter {
 public:
  static constexpr std::size_t kWindow = 100;
  static constexpr std::size_t kFewest = 20;  ///< smallest number of previous losses; a step with fewer is not high
  static constexpr double kDeviations = 6.0;
  static constexpr double kLeast = 0.1;

  SpikeCounter() { window_.reserve(kWindow + 1); }

  /// Adds the loss of a step and returns whether a spike begins at this step.
  bool add(double loss);

  std::int64_t count() const { return count_; }
  bool inside() const { return inside_; }
  const std::vector<double>& window() const { return window_; }
  /// Sets the state to that of another counter, for example of an interrupted run.
  void restore(const std::vector<double>& window, std::int64_t count, bool inside);

 private:
  std::vector<double> window_;  ///< previous losses, oldest first
  std::int64_t count_ = 0;
  bool inside_ = false;
};

}  // namespace headgate::train
