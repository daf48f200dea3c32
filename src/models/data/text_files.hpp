// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::train {

/// Which files below a directory are data.
struct FileChoice {
  /// Patterns of fnmatch(3), in which * also matches /. A file is selected if a pattern matches its name or its path
  /// below the directory. Empty: all files are selected.
  std::vector<std::string> include;
  /// Directory of the run that the data is for, which need not exist yet; empty: none. What the run writes there is not
  /// data, or it would train on it when resumed.
  std::string run;
};

/// What was given as data and is not part of it: paths below directories, and bytes.
struct LeftOut {
  std::vector<std::string> not_text;   ///< files that are not UTF-8
  std::vector<std::string> runs;       ///< directories of runs, and what a run wrote into the directory itself
  std::vector<std::string> unmatched;  ///< files that no pattern matches
  std::size_t bytes = 0;               ///< of a text, that a tokenizer has no token for

  /// One phrase for each kind, with the number of paths and the first of them: "2 files that are not UTF-8 text (a.png,
  /// b.zip)". Files that no pattern matches are included only if `all`, since the user asked to leave them out.
  std::vector<std::string> phrases(bool all = false) const;
};

/// The files below `directory`, in the order of their paths. Names that begin with a dot, directories of runs and files
/// that no pattern matches are left out; the last two join `left_out`. A directory is a run's if it is `choice.run`,
/// has metrics.jsonl beside checkpoint/, or is or holds a checkpoint to resume from. Throws io::FileError when the
/// directory cannot be read.
std::vector<std::string> files_below(const std::string& directory, const FileChoice& choice, LeftOut& left_out);

}  // namespace headgate::train
