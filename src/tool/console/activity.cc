// SPDX-License-Identifier: Apache-2.0
#include "tool/console/activity.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "models/io/units.hpp"
#include "tool/console/console.hpp"
#include "tool/console/status_line.hpp"

namespace headgate::console {

Activity::Activity(std::string text) : text_(std::move(text)) {
  if (!progress_is_shown()) return;
  try {
    thread_ = std::thread([this] { redraw(); });
  } catch (const std::system_error&) {  // no thread could be created: the work continues without a progress line
  }
}

Activity::~Activity() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Activity::show(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

void Activity::redraw() {
  constexpr auto kInterval = std::chrono::milliseconds(200);
  const auto is_done = [this] { return done_; };
  std::unique_lock lock(mutex_);
  bool drawn = false;
  for (auto wait = progress_delay(); !changed_.wait_for(lock, wait, is_done); wait = kInterval) {
    const std::chrono::duration<double> passed = ProgressBar::Clock::now() - began_;
    const std::string line = fmt::format("{}  {}", duration_text(passed.count()), text_);
    say(stderr, "\r\x1b[K" + shortened(line, terminal_columns() - 1));
    drawn = true;
  }
  if (drawn) say(stderr, "\r\x1b[K");
}

}  // namespace headgate::console
