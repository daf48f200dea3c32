// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "tool/console/progress.hpp"

namespace headgate::console {

/// Progress of work that does not say how much of it is done: "0:12  backward pass", the time since the work began, on
/// stderr under the conditions of ProgressBar. A thread redraws it until the object is destroyed; nothing else may
/// write to stderr before.
class Activity {
 public:
  explicit Activity(std::string text);
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;
  /// Stops the thread and removes the line.
  ~Activity();

  /// Replaces the text.
  void show(std::string text);

 private:
  void redraw();

  const ProgressBar::Clock::time_point began_ = ProgressBar::Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;  // under mutex_, as is done_
  bool done_ = false;
  std::thread thread_;  // not joinable where nothing is shown
};

}  // namespace headgate::console
