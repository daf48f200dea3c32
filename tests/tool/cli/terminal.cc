// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/terminal.hpp"

#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace headgate::testing {
namespace {

constexpr std::string_view kRedraw = "\r\x1b[K";

/// Returns what was printed between one kRedraw and the next. Lines that stay on the screen are not frames.
std::vector<std::string> frames_of(std::string_view output) {
  std::vector<std::string> out;
  for (std::size_t at = output.find(kRedraw); at != std::string_view::npos; at = output.find(kRedraw, at)) {
    at += kRedraw.size();
    const std::size_t end = std::min(output.find_first_of("\r\n", at), output.size());
    if (end > at && output.substr(end).starts_with(kRedraw)) out.emplace_back(output.substr(at, end - at));
  }
  return out;
}

}  // namespace

Screen run_on_terminal(int columns, const std::vector<std::string>& command,
                       const std::vector<std::string>& environment, const std::string& typed) {
  std::vector<std::string> all{"/usr/bin/env", "-u", "COLUMNS", "TERM=xterm", "HEADGATE_PROGRESS_SECONDS=0"};
  all.insert(all.end(), environment.begin(), environment.end());
  all.insert(all.end(), command.begin(), command.end());
  std::vector<char*> arguments;
  arguments.reserve(all.size() + 1);
  for (std::string& argument : all) arguments.push_back(argument.data());
  arguments.push_back(nullptr);

  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("no pseudo-terminal");
  if (child == 0) {
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  if (::write(terminal, typed.data(), typed.size()) != static_cast<ssize_t>(typed.size())) {
    throw std::runtime_error("the terminal takes no input");
  }
  Screen out;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(terminal, buffer.data(), buffer.size())) > 0;) {
    out.output.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  out.frames = frames_of(out.output);
  return out;
}

}  // namespace headgate::testing
