// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "tool/console/progress.hpp"

namespace headgate::console {

/// Shows on stderr the elapsed time and the name of work whose progress cannot be measured: "0:12  backward pass".
/// Shows nothing unless progress_is_shown(). A thread redraws the line until the object is destroyed.
/// Until then, nothing else may write to stderr.
class Activity {
 public:
  explicit Activity(std::string text);
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;
  /// Stops the thread and removes the line.
  ~Activity();

  /// Replaces the text after the elapsed time.
  void show(std::string text);

 private:
  void redraw();

  const ProgressBar::Clock::time_point began_ = ProgressBar::Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;  // mutex_ guards text_ and done_
  bool done_ = false;
  std::thread thread_;  // not joinable if no line is shown
};

}  // namespace headgate::console
