// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <string>

namespace headgate {

/// Returns fmt::vformat's text. libheadgate has a copy of fmt in it, so that its users need none. HEADGATE_OWN_FMT is
/// defined there: call/format.cc alone compiles that copy, which takes three seconds a file.
#ifdef HEADGATE_OWN_FMT
std::string format_arguments(fmt::string_view text, fmt::format_args arguments);
#else
inline std::string format_arguments(fmt::string_view text, fmt::format_args arguments) {
  return fmt::vformat(text, arguments);
}
#endif

/// Formats as fmt::format does.
template <typename... Args>
std::string formatted(fmt::format_string<Args...> text, Args&&... args) {
  return format_arguments(text, fmt::make_format_args(args...));
}

/// "a, b, c"
template <class Words>
std::string comma_separated(const Words& words) {
  std::string text;
  for (const auto& word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

}  // namespace headgate
