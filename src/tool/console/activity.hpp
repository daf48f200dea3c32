// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "tool/console/progress.hpp"

namespace headgate::console {

/// Shows on stderr how long work has been running, for work that cannot tell its completed fraction: "0:12  backward
/// pass". Shown only if progress_is_shown(). A thread redraws the line until the object is destroyed; nothing else may
/// write to stderr before then.
class Activity {
 public:
  explicit Activity(std::string text);
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;
  /// Stops the thread and removes the line.
  ~Activity();

  /// Replaces the text of the line.
  void show(std::string text);

 private:
  void redraw();

  const ProgressBar::Clock::time_point began_ = ProgressBar::Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;  // guarded by mutex_, as is done_
  bool done_ = false;
  std::thread thread_;  // not joinable if nothing is shown
};

}  // namespace headgate::console
