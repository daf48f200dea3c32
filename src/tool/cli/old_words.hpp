// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

// Translates option names of former versions to current ones, and adds notes on them.

namespace headgate::cli {

/// An option that had another name in former versions.
struct RenamedOption {
  std::string old_name, name;
};

/// A flag that took a file in former versions. Now `option` takes the file.
struct FlagWithFile {
  std::string flag, option;
  /// Returns whether the word after the flag may be an argument of the verb; otherwise the word is the flag's file.
  std::function<bool(const std::string& word)> is_argument;
};

/// Option names of former versions that one verb still accepts.
struct OldWords {
  std::vector<RenamedOption> renamed;
  std::vector<FlagWithFile> with_file;

  /// Returns `words`, the arguments after the verb, with former names replaced by current ones. Adds a note on each
  /// replaced name to `notes`.
  std::vector<std::string> translated(const std::vector<std::string>& words, std::vector<std::string>& notes) const;
};

}  // namespace headgate::cli
