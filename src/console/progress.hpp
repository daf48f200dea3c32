// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace headgate::console {

/// A bar on stderr when that is a terminal; nothing at all otherwise.
class ProgressBar {
 public:
  /// `bar_width`: columns of the bar; what the terminal has beside it is the label's.
  explicit ProgressBar(int bar_width = 40);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  bool visible() const { return visible_; }
  /// Redraws at most ten times a second. `label` is cut to what fits the line.
  void show(double fraction, const std::string& label);
  /// Takes the bar away; what is printed next stands on a clean line.
  void clear();

 private:
  int bar_width_;
  bool visible_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace headgate::console
