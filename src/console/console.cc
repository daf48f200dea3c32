// SPDX-License-Identifier: Apache-2.0
#include "console/console.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace headgate::cli {

void say(std::FILE* stream, const std::string& text) noexcept {
  errno = 0;
  const bool whole = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if ((std::fflush(stream) == 0 && whole) || errno != EPIPE) return;
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return;
  ::dup2(nowhere, ::fileno(stream));
  ::close(nowhere);
  std::clearerr(stream);
}

void outlive_output() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    // The lowest number that is free is the stream's own: those below it are open.
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  }
}

}  // namespace headgate::cli
