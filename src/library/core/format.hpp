// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <functional>
#include <string>

namespace headgate {

/// Returns what fmt::vformat returns. HEADGATE_OWN_FMT is defined in libraries that have a copy of fmt in them, so that
/// their users need none: call/format.cc compiles it, and every other file takes three seconds less.
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

/// Returns "a, b, c": word(item) of each item, or the items themselves.
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
