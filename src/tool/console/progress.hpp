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

/// Returns whether progress is shown: stderr is a terminal that takes control codes, is_quiet() is false, and the
/// library does not log its calls there (is_verbose()).
bool progress_is_shown();

/// Returns the delay before progress appears: the seconds in HEADGATE_PROGRESS_SECONDS, 2 by default.
std::chrono::steady_clock::duration progress_delay();

/// Time at which a bar appears: at once, or after progress_delay().
enum class Appearance { at_once, delayed };

/// A progress bar on stderr, drawn if progress_is_shown(). If there are several bars, the one that was shown last is
/// drawn.
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressBar(Appearance appearance = Appearance::delayed);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  bool visible() const { return visible_; }
  /// Redraws at most ten times a second. If seconds_left is empty, it is estimated from the mean speed so far.
  void show(const StatusLine& line);
  void show(double fraction, const LinePart& part) { show({.fraction = fraction, .parts = {part}}); }
  /// Removes the bar from the line.
  void clear();
  /// Removes the currently drawn bar, even if another object drew it.
  static void clear_line();

 private:
  std::optional<double> estimated_seconds_left(double fraction, Clock::time_point now);

  bool visible_ = false;
  Clock::time_point appears_;
  Clock::time_point last_;
  Clock::time_point begin_ = Clock::now();  ///< time at which first_fraction_ was reached
  double first_fraction_ = 0.0;
};

}  // namespace headgate::console
