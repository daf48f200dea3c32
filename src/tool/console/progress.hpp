// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "tool/console/status_line.hpp"

namespace headgate::console {

/// Returns the width of the terminal on stderr, or COLUMNS if the terminal does not report one, or 80.
std::size_t terminal_columns();

/// A progress bar on stderr if that is a terminal; otherwise nothing is shown.
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  bool visible() const { return visible_; }
  /// Redraws at most ten times a second. If seconds_left is empty, it is estimated from the mean speed so far.
  void show(const StatusLine& line);
  void show(double fraction, const LinePart& part) { show({.fraction = fraction, .parts = {part}}); }
  /// Removes the bar from the line.
  void clear();

 private:
  std::optional<double> estimated_seconds_left(double fraction, Clock::time_point now);

  bool visible_ = false;
  bool drawn_ = false;
  Clock::time_point last_;
  Clock::time_point begin_ = Clock::now();  ///< when first_fraction_ was done
  double first_fraction_ = 0.0;
};

}  // namespace headgate::console
