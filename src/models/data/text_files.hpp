// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::train {

/// Selects the files of a directory that are data.
struct FileChoice {
  /// Patterns of fnmatch(3), in which * also matches /. A pattern selects a file if it matches the file's name or the
  /// file's path relative to the directory. Empty: all files are selected.
  std::vector<std::string> include;
  /// Directory of the training run that reads the data. It need not exist yet. Empty: none. Files in it are left out: a
  /// resumed run would otherwise train on its own output.
  std::string run;
};

/// Lists the given files and directories that training skips, and counts the text bytes that it cannot encode.
struct LeftOut {
  std::vector<std::string> not_text;     ///< files that are not UTF-8
  std::vector<std::string> runs;         ///< directories of runs; metrics.jsonl if the given directory is itself a run
  std::vector<std::string> unmatched;    ///< files that no pattern matches
  std::vector<std::string> unreachable;  ///< dangling links, and paths beyond PATH_MAX
  std::size_t bytes = 0;                 ///< number of text bytes for which the tokenizer has no token

  /// Returns one phrase for each list that is not empty, with the number of its paths and the first three: "2 files
  /// that are not UTF-8 text (a.png, b.zip)". `bytes` has a phrase too. Includes `unmatched` only if `all` is true,
  /// since the user asked to leave those files out.
  std::vector<std::string> phrases(bool all = false) const;
};

/// Returns the files below `directory`, sorted by path. Skips names that begin with a dot. Also skips directories of
/// runs, files that no pattern matches and paths that cannot be opened, and adds these to `left_out`. A directory
/// belongs to a run if it is `choice.run` or if is_run_or_checkpoint() returns true for it. Throws io::FileError if a
/// directory cannot be read.
std::vector<std::string> files_below(const std::string& directory, const FileChoice& choice, LeftOut& left_out);

}  // namespace headgate::train
