// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "tool/console/status_line.hpp"

namespace headgate::console {

/// Returns the number of columns of the terminal on stderr.
/// If the terminal does not report its width, returns the value of COLUMNS, or 80 if that is unset.
std::size_t terminal_columns();

/// Returns whether progress may be shown on stderr. All of the following must hold:
/// - stderr is a terminal with control codes;
/// - is_quiet() is false;
/// - is_verbose() is false, so that the library does not log to stderr.
bool progress_is_shown();

/// Returns the time to wait before progress appears: HEADGATE_PROGRESS_SECONDS seconds, 2 by default.
std::chrono::steady_clock::duration progress_delay();

/// Time at which a progress bar appears: at once, or after progress_delay(), so that short work shows no bar.
enum class Appearance { at_once, delayed };

/// A progress bar on stderr, drawn only if progress_is_shown().
/// All bars share one line of the terminal: a bar that is drawn replaces the previous one.
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressBar(Appearance appearance = Appearance::delayed);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  bool visible() const { return visible_; }
  /// Draws the bar, at most ten times a second.
  /// If line.seconds_left is empty, estimates it from the mean speed since the start.
  void show(const StatusLine& line);
  void show(double fraction, const LinePart& part) { show({.fraction = fraction, .parts = {part}}); }
  /// Erases this bar if it is on the current line.
  void clear();
  /// Erases the bar on the current line, whichever object drew it.
  static void clear_line();

 private:
  std::optional<double> estimated_seconds_left(double fraction, Clock::time_point now);

  bool visible_ = false;
  Clock::time_point appears_;
  Clock::time_point last_;
  Clock::time_point begin_ = Clock::now();  ///< time at which the work had reached first_fraction_
  double first_fraction_ = 0.0;
};

}  // namespace headgate::console
