// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string_view>

namespace headgate {

/// Whether calls are reported, a line each on stderr. The environment variable HEADGATE_VERBOSE is read once for the
/// process: unset, empty or 0 for no.
inline bool is_verbose() {
  static const bool verbose = [] {
    const char* text = std::getenv("HEADGATE_VERBOSE");
    return text != nullptr && *text != '\0' && std::string_view(text) != "0";
  }();
  return verbose;
}

}  // namespace headgate
