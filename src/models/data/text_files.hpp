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
  /// Directory of the training run that reads the data, or empty. Its files are skipped, so that a resumed run does not
  /// train on its own output. The directory need not exist yet.
  std::string run;
};

/// Lists the given files and directories that training skips, and counts the text bytes that it cannot encode.
struct LeftOut {
  std::vector<std::string> not_text;  ///< files that are not UTF-8 text
  /// Directories of training runs, and the file metrics.jsonl if the searched directory is itself a run.
  std::vector<std::string> runs;
  std::vector<std::string> unmatched;    ///< files that no pattern matches
  std::vector<std::string> unreachable;  ///< dangling links, and paths beyond PATH_MAX
  std::size_t bytes = 0;                 ///< number of text bytes for which the tokenizer has no token

  /// Returns one phrase for each reason why data are skipped, such as "2 files that are not UTF-8 text (a.png, b.zip)".
  /// - Each list that is not empty gives a phrase with the number of its paths and the first three paths.
  /// - The list `unmatched` gives a phrase only if `all` is true.
  /// - `bytes` gives a phrase unless it is 0.
  std::vector<std::string> phrases(bool all = false) const;
};

/// Returns the files below `directory`, sorted by path. Skips names that begin with a dot. Skips the following paths
/// too, and adds them to `left_out`:
/// - `choice.run`, and directories for which is_run_or_checkpoint() returns true
/// - metrics.jsonl in `directory`, if `directory` itself is a run or a checkpoint
/// - files that no pattern matches
/// - paths that cannot be opened
///
/// Throws io::FileError if a directory cannot be read.
std::vector<std::string> files_below(const std::string& directory, const FileChoice& choice, LeftOut& left_out);

}  // namespace headgate::train
