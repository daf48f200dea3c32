// SPDX-License-Identifier: Apache-2.0
#include "tool/console/console.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace headgate::console {
namespace {

bool g_quiet = false;

}  // namespace

bool takes_control_codes(int descriptor) {
  const char* terminal = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

bool takes_colours(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  return takes_control_codes(descriptor) && (no_color == nullptr || *no_color == '\0');
}

void be_quiet() { g_quiet = true; }

bool is_quiet() { return g_quiet; }

void note(const std::string& text) noexcept {
  if (!g_quiet) say(stderr, text);
}

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
