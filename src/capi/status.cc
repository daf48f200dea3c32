// SPDX-License-Identifier: Apache-2.0
#include "capi/status.hpp"

#include <cstddef>
#include <cstdio>
#include <cstring>

namespace headgate::capi {
namespace {

/// A fixed buffer, so that reporting a lack of memory needs none.
constexpr std::size_t kMaxErrorBytes = 1024;
thread_local char error_text[kMaxErrorBytes] = "";

}  // namespace

const char* last_error() noexcept { return error_text; }

void clear_last_error() noexcept { error_text[0] = '\0'; }

void set_last_error(const char* function, const char* message) noexcept {
  const char* cpp_function = function + std::strlen("headgate_");
  const bool named = std::strncmp(message, cpp_function, std::strlen(cpp_function)) == 0;
  const int length = named ? std::snprintf(error_text, kMaxErrorBytes, "headgate_%s", message)
                           : std::snprintf(error_text, kMaxErrorBytes, "%s: %s", function, message);
  if (length < static_cast<int>(kMaxErrorBytes)) return;
  // A cut must not leave half a UTF-8 character: drop the last one if it has more than one byte.
  std::size_t end = kMaxErrorBytes - 1;
  while (end > 0 && (static_cast<unsigned char>(error_text[end - 1]) & 0xC0U) == 0x80U) --end;
  if (end > 0 && (static_cast<unsigned char>(error_text[end - 1]) & 0x80U) != 0) --end;
  error_text[end] = '\0';
}

}  // namespace headgate::capi
