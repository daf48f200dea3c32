// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace headgate::tokenize {

/// Error in a tokenizer. The message is one line. It does not name the file; the code that reads the file adds the
/// name.
class TokenizerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw TokenizerError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace headgate::tokenize
