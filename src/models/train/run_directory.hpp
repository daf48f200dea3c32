// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/data/run_files.hpp"
#include "models/io/directory_lock.hpp"
#include "models/train/trainer.hpp"

// A run has a directory of its own:
//   metrics.jsonl  see metrics_log.hpp
//   checkpoint/    see checkpoint.hpp
//   token_ids.bin  with a tokenizer: the ids of its text, see token_file.hpp
//   checkpoint.1/, checkpoint.2/, …  used once the one before holds files that are not part of a checkpoint

namespace headgate::train {

/// Returns the directories in `run` that hold a checkpoint, the newest (of most steps) first. Throws io::FileError if
/// there are several and the step of one cannot be read.
std::vector<std::string> checkpoints_of(const std::string& run);

/// Returns the first of checkpoints_of; `run`/checkpoint if there is none.
std::string newest_checkpoint(const std::string& run);

/// Returns the paths of all files that a run in `run` writes, whether they exist or not.
std::vector<std::string> files_of_run(const std::string& run);

/// Returns the files that outputs must not overwrite: those of the model or run in `path`, and the metrics.jsonl of the
/// run whose checkpoint it is. Includes files of known names that do not exist.
std::vector<std::string> files_of_model_or_run(const std::string& path);

/// Throws io::FileError if a new run cannot begin: `run` holds a checkpoint, the metrics of a run, or a checkpoint/
/// that cannot be replaced.
void require_no_run(const std::string& run);

enum class RunStart { fresh, resumed };

/// Locks a run's directory against other trainers while the object exists.
class RunDirectory {
 public:
  /// fresh: creates the directory if missing, but not its parent, and calls require_no_run. resumed: the directory must
  /// exist. Throws io::FileError, also if another process holds the lock, metrics.jsonl is not that of a run, or the
  /// newest checkpoint cannot be replaced.
  RunDirectory(const std::string& path, RunStart start);

  const std::string& path() const { return path_; }
  /// Returns the newest checkpoint, which the next save replaces.
  const std::string& checkpoint() const { return checkpoint_; }
  /// Returns why the directory is not locked, if its file system has no locks; empty if it is locked.
  const std::string& lock_unavailable() const { return lock_.unavailable(); }

  /// Replaces the newest checkpoint or, if its directory holds other files, saves beside it; checkpoint() is then the
  /// new one. Throws io::WriteError (the last checkpoint remains) and Diverged.
  void save(const Trainer& trainer);

 private:
  std::string path_;
  io::DirectoryLock lock_;
  std::string checkpoint_;
};

}  // namespace headgate::train
