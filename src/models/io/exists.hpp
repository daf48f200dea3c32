// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace headgate::io {

/// Returns whether a path leads to something. Returns false if the system does not allow to look.
inline bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace headgate::io
