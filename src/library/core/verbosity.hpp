// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string_view>

namespace headgate {

/// Returns whether each call prints a line to stderr. Reads the environment variable HEADGATE_VERBOSE once per process.
/// If it is unset, empty or 0, returns false.
inline bool is_verbose() {
  static const bool verbose = [] {
    const char* text = std::getenv("HEADGATE_VERBOSE");
    return text != nullptr && *text != '\0' && std::string_view(text) != "0";
  }();
  return verbose;
}

}  // namespace headgate
