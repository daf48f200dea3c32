// SPDX-License-Identifier: Apache-2.0
#include "cli/signals.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "io/staged_file.hpp"

namespace headgate::cli {
namespace {

constexpr std::array kEndingSignals{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU};
constexpr std::array kWatchedSignals{SIGINT, SIGTERM, SIGHUP};

// The handlers below may run in any thread at any moment: they call only functions that POSIX calls async-signal-safe,
// and access only lock-free atomics.
std::atomic<int> g_received{0};
std::atomic<std::int64_t> g_received_at_ms{0};  // by the monotonic clock
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t milliseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

extern "C" void headgate_cli_end_process(int number) {
  io::remove_unfinished_files();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

extern "C" void headgate_cli_record_signal(int number) {
  constexpr std::int64_t kCopies_ms = 1000;
  const std::int64_t now = milliseconds_now();
  int none = 0;
  if (g_received.compare_exchange_strong(none, number)) {
    g_received_at_ms.store(now);
  } else if (number != SIGHUP && now - g_received_at_ms.load() >= kCopies_ms) {
    headgate_cli_end_process(number);
  }
}

using Handler = void (*)(int);

Handler handler_of(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 ? action.sa_handler : SIG_IGN;
}

void set_handler(int number, Handler handler) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

std::array<Handler, kWatchedSignals.size()> g_before_watch{};

}  // namespace

void remove_unfinished_files_on_signals() {
  for (const int number : kEndingSignals) {
    if (handler_of(number) == SIG_DFL) set_handler(number, headgate_cli_end_process);
  }
}

void report_files_too_large() { std::signal(SIGXFSZ, SIG_IGN); }

void survive_lost_output() {
  std::signal(SIGPIPE, SIG_IGN);
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    // open returns the lowest free descriptor: this stream's, since those below it are open.
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  }
}

SignalWatch::SignalWatch() {
  g_received.store(0);
  for (std::size_t i = 0; i < kWatchedSignals.size(); ++i) {
    g_before_watch[i] = handler_of(kWatchedSignals[i]);
    if (g_before_watch[i] != SIG_IGN) set_handler(kWatchedSignals[i], headgate_cli_record_signal);
  }
}

SignalWatch::~SignalWatch() {
  for (std::size_t i = 0; i < kWatchedSignals.size(); ++i) {
    if (handler_of(kWatchedSignals[i]) == headgate_cli_record_signal)
      set_handler(kWatchedSignals[i], g_before_watch[i]);
  }
}

int SignalWatch::received() { return g_received.load(); }

}  // namespace headgate::cli
