// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace headgate::io {

/// Returns the entries of a directory. If reading fails, sets `error` and returns the entries read so far. A range-for
/// over a directory_iterator would throw, because its operator++ reports no error code.
inline std::vector<std::filesystem::directory_entry> directory_entries(const std::filesystem::path& directory,
                                                                       std::error_code& error) {
  std::vector<std::filesystem::directory_entry> out;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    out.push_back(*entry);
  }
  return out;
}

}  // namespace headgate::io
