// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::train {

/// Selects the files below a directory that are data.
struct FileChoice {
  /// Patterns of fnmatch(3), in which * also matches /. A pattern that matches a file's name, or its path below the
  /// directory, selects the file. Empty: all files are selected.
  std::vector<std::string> include;
  /// Directory of the run that the data is for, which need not exist yet; empty: none. Files that the run writes there
  /// are not data: a resumed run would otherwise train on them.
  std::string run;
};

/// Lists what was given as data but is not part of it: paths below directories, and bytes.
struct LeftOut {
  std::vector<std::string> not_text;     ///< files that are not UTF-8
  std::vector<std::string> runs;         ///< directories of runs, and what a run wrote into the directory itself
  std::vector<std::string> unmatched;    ///< files that no pattern matches
  std::vector<std::string> unreachable;  ///< links that lead nowhere, and paths beyond PATH_MAX
  std::size_t bytes = 0;                 ///< bytes of a text for which a tokenizer has no token

  /// Returns one phrase for each kind, with the number of paths and the first of them: "2 files that are not UTF-8 text
  /// (a.png, b.zip)". Includes files that no pattern matches only if `all`, since the user asked to leave them out.
  std::vector<std::string> phrases(bool all = false) const;
};

/// Returns the files below `directory`, in the order of their paths. Leaves out names that begin with a dot,
/// directories of runs, files that no pattern matches and paths that cannot be opened; adds the last three to
/// `left_out`. A directory is a run's if it is `choice.run`, has metrics.jsonl beside checkpoint/, or is or holds a
/// checkpoint to resume from. Throws io::FileError for a directory that cannot be read.
std::vector<std::string> files_below(const std::string& directory, const FileChoice& choice, LeftOut& left_out);

}  // namespace headgate::train
