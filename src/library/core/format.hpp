// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <functional>
#include <string>

namespace headgate {

/// Calls fmt::vformat(). With HEADGATE_OWN_FMT, the library contains a copy of fmt, so that programs that use the
/// library do not need fmt. Only call/format.cc then includes the implementation of fmt, because every file that
/// includes it takes three seconds longer to compile.
#ifdef HEADGATE_OWN_FMT
std::string format_arguments(fmt::string_view text, fmt::format_args arguments);
#else
inline std::string format_arguments(fmt::string_view text, fmt::format_args arguments) {
  return fmt::vformat(text, arguments);
}
#endif

/// Formats like fmt::format.
template <typename... Args>
std::string formatted(fmt::format_string<Args...> text, Args&&... args) {
  return format_arguments(text, fmt::make_format_args(args...));
}

/// Joins word(item) of all items with ", ". Without `word`, joins the items themselves.
template <class Items, class Word = std::identity>
std::string comma_separated(const Items& items, const Word& word = {}) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ", ";
    text += std::invoke(word, item);
  }
  return text;
}

}  // namespace headgate
