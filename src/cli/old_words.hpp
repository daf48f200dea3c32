// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

// Words of command lines that were written for former versions: they keep working, with a note.

namespace headgate::cli {

/// An option with another name in former versions.
struct RenamedOption {
  std::string old_name, name;
};

/// A flag that took a file in former versions, for which `option` stands now.
struct FlagWithFile {
  std::string flag, option;
  /// Whether the word after the flag may be an argument of the verb, in which case it is not the flag's file.
  std::function<bool(const std::string& word)> is_argument;
};

/// Those of one verb.
struct OldWords {
  std::vector<RenamedOption> renamed;
  std::vector<FlagWithFile> with_file;

  /// `words`, what stands behind the verb, in today's words. A note is added to `notes` for each old word, once.
  std::vector<std::string> translated(const std::vector<std::string>& words, std::vector<std::string>& notes) const;
};

}  // namespace headgate::cli
