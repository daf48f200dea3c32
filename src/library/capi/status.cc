// SPDX-License-Identifier: Apache-2.0
#include "library/capi/status.hpp"

#include <cstddef>
#include <cstdio>
#include <cstring>

namespace headgate::capi {
namespace {

/// Size of a thread's buffer for the last error. The buffer is static, so that reporting "out of memory" allocates
/// nothing.
constexpr std::size_t kMaxErrorBytes = 1024;
thread_local char error_text[kMaxErrorBytes] = "";

/// Removes the function's name from the beginning of `message`, and returns the rest, which begins with a colon. In the
/// message, the name may have spaces in place of underscores. Returns the whole message if it does not begin with the
/// name and a colon.
const char* after_function(const char* function, const char* message) {
  const char* at = message;
  for (; *function != '\0'; ++function, ++at) {
    if (*at != *function && !(*function == '_' && *at == ' ')) return message;
  }
  return *at == ':' ? at : message;
}

}  // namespace

const char* last_error() noexcept { return error_text; }

void clear_last_error() noexcept { error_text[0] = '\0'; }

void set_last_error(const char* function, const char* message) noexcept {
  const char* text = after_function(function + std::strlen("headgate_"), message);
  const int length = std::snprintf(error_text, kMaxErrorBytes, "%s%s%s", function, *text == ':' ? "" : ": ", text);
  // Replaces control characters, so that the message stays one line even if it quotes an argument.
  for (char* at = error_text; *at != '\0'; ++at) {
    if (static_cast<unsigned char>(*at) < ' ' || *at == '\x7F') *at = '?';
  }
  if (length < static_cast<int>(kMaxErrorBytes)) return;
  // Removes the last UTF-8 character of a truncated message if the character has several bytes: some of them may be cut
  // off.
  std::size_t end = kMaxErrorBytes - 1;
  while (end > 0 && (static_cast<unsigned char>(error_text[end - 1]) & 0xC0U) == 0x80U) --end;
  if (end > 0 && (static_cast<unsigned char>(error_text[end - 1]) & 0x80U) != 0) --end;
  error_text[end] = '\0';
}

}  // namespace headgate::capi
