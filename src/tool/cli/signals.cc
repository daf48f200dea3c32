// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/signals.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <string>
#include <utility>

#include "models/io/mapped_file.hpp"
#include "models/io/staged_file.hpp"

namespace headgate::cli {
namespace {

constexpr std::array kEndingSignals{SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGXCPU};
constexpr std::array kWatchedSignals{SIGINT, SIGTERM, SIGHUP};

// The handlers below may interrupt any thread at any point. The handlers therefore call only functions that POSIX lists
// as async-signal-safe, and access only lock-free atomics.
std::atomic<int> g_received{0};
std::atomic<bool> g_received_from_keyboard{false};
std::atomic<std::int64_t> g_received_at_ms{0};  // time of the first signal, on the monotonic clock
std::atomic<const char*> g_acknowledgement{nullptr};
std::atomic<const char*> g_who{""};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);

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

/// Returns whether a write to stderr would not block. A handler must not wait for a stopped terminal or a full pipe.
bool stderr_is_ready() {
  pollfd stream{STDERR_FILENO, POLLOUT, 0};
  return ::poll(&stream, 1, 0) == 1 && (stream.revents & POLLOUT) != 0;
}

void acknowledge() {
  const char* text = g_acknowledgement.load();
  if (text == nullptr || !stderr_is_ready()) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

/// Handles SIGBUS. The kernel raises this signal in a thread that reads a mapped page beyond the end of a shortened
/// file.
/// If several threads get the signal, the first prints the message and exits; the others wait.
extern "C" void headgate_cli_report_lost_file(int number, siginfo_t* info, void* /*context*/) {
  static std::atomic_flag reported = ATOMIC_FLAG_INIT;
  static std::array<char, 2 * PATH_MAX> line;
  const bool of_access = info->si_code > 0;  // true if the kernel sent the signal, false if a process did
  const char* path = of_access ? io::mapped_path_at(info->si_addr) : nullptr;
  if (path == nullptr) {
    std::signal(number, SIG_DFL);
    if (!of_access) std::raise(number);
    return;  // the thread then repeats the access and gets another SIGBUS, which ends the process
  }
  while (reported.test_and_set()) ::pause();
  std::size_t bytes = 0;
  const char* begin = ::isatty(STDERR_FILENO) == 1 ? "\n" : "";  // starts a new line after a progress bar
  for (const char* part :
       {begin, g_who.load(), ": ", path, ": became shorter while it was read, or its disk has failed\n"}) {
    const std::size_t count = std::min(std::strlen(part), line.size() - bytes);
    std::memcpy(line.data() + bytes, part, count);
    bytes += count;
  }
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), bytes);
  io::remove_unfinished_files();
  ::_exit(kLostFileStatus);
}

extern "C" void headgate_cli_record_signal(int number, siginfo_t* info, void* /*context*/) {
  constexpr std::int64_t kCopies_ms = 1000;
  const int before = errno;
  const std::int64_t now = milliseconds_now();
  const bool from_keyboard = info->si_code == SI_KERNEL;  // true if the terminal driver sent the signal
  int none = 0;
  if (g_received.compare_exchange_strong(none, number)) {
    g_received_from_keyboard.store(from_keyboard);
    g_received_at_ms.store(now);
    acknowledge();
  } else if (number != SIGHUP) {
    const bool pressed_twice = from_keyboard && g_received_from_keyboard.load();
    if (pressed_twice || now - g_received_at_ms.load() >= kCopies_ms) headgate_cli_end_process(number);
  }
  errno = before;
}

using Action = struct sigaction;

Action action_of(int number) {
  Action action{};
  if (::sigaction(number, nullptr, &action) != 0) action.sa_handler = SIG_IGN;
  return action;
}

void set_handler(int number, void (*handler)(int)) {
  Action action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

std::array<Action, kWatchedSignals.size()> g_before_watch{};

}  // namespace

void remove_unfinished_files_on_signals() {
  for (const int number : kEndingSignals) {
    if (action_of(number).sa_handler == SIG_DFL) set_handler(number, headgate_cli_end_process);
  }
}

void report_files_too_large() { std::signal(SIGXFSZ, SIG_IGN); }

void report_lost_files(const char* who) {
  g_who.store(who);
  Action action{};
  action.sa_sigaction = headgate_cli_report_lost_file;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

void survive_lost_output() {
  std::signal(SIGPIPE, SIG_IGN);
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    // If `stream` is closed, open() returns it: it is then the lowest free descriptor, because all lower ones are open.
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  }
}

SignalWatch::SignalWatch(std::string acknowledgement) : acknowledgement_(std::move(acknowledgement)) {
  if (!acknowledgement_.empty()) {
    // Begins with a newline: the current line may hold a progress bar, and the terminal echoes ^C there.
    acknowledgement_ = (::isatty(STDERR_FILENO) == 1 ? "\n" : "") + acknowledgement_ + "\n";
    g_acknowledgement.store(acknowledgement_.c_str());
  }
  // Sets the time of the first signal to the far future, because the handler stores g_received before the actual time.
  // A second signal that arrives between these two stores thus counts as a copy of the first.
  g_received_at_ms.store(std::numeric_limits<std::int64_t>::max());
  g_received_from_keyboard.store(false);
  g_received.store(0);
  Action record{};
  record.sa_sigaction = headgate_cli_record_signal;
  record.sa_flags = SA_RESTART | SA_SIGINFO;
  for (std::size_t i = 0; i < kWatchedSignals.size(); ++i) {
    g_before_watch[i] = action_of(kWatchedSignals[i]);
    if (g_before_watch[i].sa_handler != SIG_IGN) ::sigaction(kWatchedSignals[i], &record, nullptr);
  }
}

SignalWatch::~SignalWatch() {
  for (std::size_t i = 0; i < kWatchedSignals.size(); ++i) {
    if (action_of(kWatchedSignals[i]).sa_sigaction == headgate_cli_record_signal) {
      ::sigaction(kWatchedSignals[i], &g_before_watch[i], nullptr);
    }
  }
  g_acknowledgement.store(nullptr);
}

int SignalWatch::received() { return g_received.load(); }

}  // namespace headgate::cli
