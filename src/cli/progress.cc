// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace headgate::cli {
namespace {

bool stderr_takes_control_codes() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

}  // namespace

ProgressBar::ProgressBar() : visible_(stderr_takes_control_codes()) {}

void ProgressBar::show(double fraction, const std::string& label) {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  constexpr int kWidth = 40;
  constexpr std::size_t kLabelWidth = 30;
  const auto now = std::chrono::steady_clock::now();
  if (!visible_ || (drawn_ && now - last_ < kInterval)) return;
  last_ = now;
  drawn_ = true;
  const double part = std::clamp(fraction, 0.0, 1.0);
  const int filled = static_cast<int>(part * kWidth);
  fmt::print(stderr, "\r\x1b[K[{}{}] {:3.0f}%  {}", std::string(static_cast<std::size_t>(filled), '#'),
             std::string(static_cast<std::size_t>(kWidth - filled), '.'), 100.0 * part, label.substr(0, kLabelWidth));
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace headgate::cli
