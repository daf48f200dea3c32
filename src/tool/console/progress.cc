// SPDX-License-Identifier: Apache-2.0
#include "tool/console/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "library/core/verbosity.hpp"
#include "tool/console/console.hpp"

namespace headgate::console {
namespace {

/// Returns the number in the environment variable COLUMNS, or 0 if it is unset or not a number.
std::size_t columns_of_environment() {
  const char* text = std::getenv("COLUMNS");
  if (text == nullptr) return 0;
  std::size_t columns = 0;
  const char* const end = text + std::strlen(text);
  const auto read = std::from_chars(text, end, columns);
  return read.ec == std::errc{} && read.ptr == end ? columns : 0;
}

ProgressBar* g_in_line = nullptr;  // the bar on the current line; null if there is none

}  // namespace

bool progress_is_shown() { return !is_quiet() && !is_verbose() && takes_control_codes(STDERR_FILENO); }

ProgressBar::Clock::duration progress_delay() {
  constexpr double kUsual = 2.0;
  const char* text = std::getenv("HEADGATE_PROGRESS_SECONDS");
  double seconds = kUsual;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), seconds);
  const std::chrono::duration<double> delay(seconds >= 0.0 ? std::min(seconds, 1e6) : kUsual);
  return std::chrono::duration_cast<ProgressBar::Clock::duration>(delay);
}

std::size_t terminal_columns() {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const std::size_t columns = columns_of_environment();
  return columns > 0 ? columns : kUsual;
}

ProgressBar::ProgressBar(Appearance appearance) : visible_(progress_is_shown()), appears_(Clock::now()) {
  if (appearance == Appearance::delayed) appears_ += progress_delay();
}

std::optional<double> ProgressBar::estimated_seconds_left(double fraction, Clock::time_point now) {
  if (fraction <= first_fraction_) {  // no progress since the start, or a new task begins at a lower fraction
    first_fraction_ = fraction;
    begin_ = now;
    return std::nullopt;
  }
  const std::chrono::duration<double> passed = now - begin_;
  return passed.count() * (1.0 - fraction) / (fraction - first_fraction_);
}

void ProgressBar::show(const StatusLine& line) {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  if (!visible_) return;
  const auto now = Clock::now();
  StatusLine shown = line;
  if (!shown.seconds_left) shown.seconds_left = estimated_seconds_left(line.fraction, now);
  if (now < appears_ || (g_in_line == this && now - last_ < kInterval)) return;
  last_ = now;
  g_in_line = this;
  say(stderr, "\r\x1b[K" + status_text(shown, terminal_columns()));
}

void ProgressBar::clear() {
  if (g_in_line == this) clear_line();
}

void ProgressBar::clear_line() {
  if (g_in_line == nullptr) return;
  say(stderr, "\r\x1b[K");
  g_in_line = nullptr;
}

}  // namespace headgate::console
