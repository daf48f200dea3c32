// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace headgate::console {

/// A progress bar on stderr if that is a terminal; otherwise nothing is shown.
class ProgressBar {
 public:
  /// `bar_width`: columns of the bar; the label gets the rest of the line.
  explicit ProgressBar(int bar_width = 40);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  bool visible() const { return visible_; }
  /// Redraws at most ten times a second. `label` is cut to what fits the line.
  void show(double fraction, const std::string& label);
  /// Removes the bar from the line.
  void clear();

 private:
  int bar_width_;
  bool visible_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace headgate::console
