// SPDX-License-Identifier: Apache-2.0
#include "console/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "console/console.hpp"

namespace headgate::console {
namespace {

bool stderr_takes_control_codes() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

int terminal_columns() {
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace

ProgressBar::ProgressBar(int bar_width) : bar_width_(bar_width), visible_(stderr_takes_control_codes()) {}

void ProgressBar::show(double fraction, const std::string& label) {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  constexpr int kBesideLabel = 10;  // brackets, percentage, blanks, and the last column, which may wrap
  const auto now = std::chrono::steady_clock::now();
  if (!visible_ || (drawn_ && now - last_ < kInterval)) return;
  last_ = now;
  drawn_ = true;
  const double part = std::clamp(fraction, 0.0, 1.0);
  const int filled = static_cast<int>(part * bar_width_);
  const int room = std::max(0, terminal_columns() - bar_width_ - kBesideLabel);
  say(stderr, fmt::format("\r\x1b[K[{}{}] {:3.0f}%  {}", std::string(filled, '#'),
                          std::string(bar_width_ - filled, '.'), 100.0 * part, label.substr(0, room)));
}

void ProgressBar::clear() {
  if (!drawn_) return;
  say(stderr, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace headgate::console
