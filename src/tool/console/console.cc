// SPDX-License-Identifier: Apache-2.0
#include "tool/console/console.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace headgate::console {

bool say(std::FILE* stream, const std::string& text) noexcept {
  errno = 0;
  const bool whole = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if ((std::fflush(stream) == 0 && whole) || errno != EPIPE) return true;
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return false;
  ::dup2(nowhere, ::fileno(stream));
  ::close(nowhere);
  std::clearerr(stream);
  return false;
}

}  // namespace headgate::console
