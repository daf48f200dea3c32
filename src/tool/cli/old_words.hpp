// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

// Translates option names of former versions, with a note.

namespace headgate::cli {

/// An option with another name in former versions.
struct RenamedOption {
  std::string old_name, name;
};

/// A flag that took a file in former versions. `option` takes it now.
struct FlagWithFile {
  std::string flag, option;
  /// Returns whether the word after the flag may be an argument of the verb; else it is the flag's file.
  std::function<bool(const std::string& word)> is_argument;
};

/// The old words of one verb.
struct OldWords {
  std::vector<RenamedOption> renamed;
  std::vector<FlagWithFile> with_file;

  /// Returns `words`, the arguments after the verb, with old words replaced. Adds one note for each to `notes`.
  std::vector<std::string> translated(const std::vector<std::string>& words, std::vector<std::string>& notes) const;
};

}  // namespace headgate::cli
