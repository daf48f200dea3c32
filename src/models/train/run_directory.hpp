// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/data/run_files.hpp"
#include "models/io/directory_lock.hpp"
#include "models/train/trainer.hpp"

// Defines the files of a training run. Each run has a directory with these files:
//   metrics.jsonl: has the metrics of each step; see metrics_log.hpp.
//   checkpoint/: is the checkpoint; see checkpoint.hpp.
//   checkpoint.1/, checkpoint.2/, …: are used if the previous directory holds files that are not part of a checkpoint.
//   token_ids.bin: has the token ids of the text, if there is a tokenizer; see token_file.hpp.

namespace headgate::train {

/// Returns the directories in `run` that hold a checkpoint, newest (most steps) first. Throws io::FileError if there
/// are several and the step of one cannot be read.
std::vector<std::string> checkpoints_of(const std::string& run);

/// Returns the directory of the newest checkpoint, or `run`/checkpoint if there is none.
std::string newest_checkpoint(const std::string& run);

/// Returns the paths of all files that a run in `run` writes, whether they exist or not.
std::vector<std::string> files_of_run(const std::string& run);

/// Returns the files of the model or run at `path`, which outputs must not overwrite. Includes files that may be
/// written later. If `path` is a checkpoint of a run, includes the run's metrics.jsonl.
std::vector<std::string> files_of_model_or_run(const std::string& path);

/// Throws io::FileError in these cases:
/// - A new run in the directory `run` would overwrite a checkpoint.
/// - A new run would overwrite a metrics.jsonl that is not empty.
/// - The checkpoint/ of `run` cannot be replaced.
void require_no_run(const std::string& run);

enum class RunStart { fresh, resumed };

/// Locks a run's directory against other trainers while the object exists.
class RunDirectory {
 public:
  /// Opens and locks the directory.
  /// - RunStart::fresh: calls require_no_run(), and creates the directory if it is missing, but not its parent.
  /// - RunStart::resumed: the directory must exist.
  ///
  /// Throws io::FileError if the directory cannot be used, for example in these cases:
  /// - Another process holds the lock.
  /// - metrics.jsonl does not belong to a run.
  /// - The newest checkpoint cannot be replaced.
  RunDirectory(const std::string& path, RunStart start);

  const std::string& path() const { return path_; }
  /// Returns the newest checkpoint, which the next save replaces.
  const std::string& checkpoint() const { return checkpoint_; }
  /// Returns the reason why the file system cannot lock the directory; empty if the directory is locked.
  const std::string& lock_unavailable() const { return lock_.unavailable(); }

  /// Replaces the newest checkpoint. If its directory holds other files too, saves to a new directory, which
  /// checkpoint() then returns. Throws io::WriteError and Diverged; the last checkpoint then remains.
  void save(const Trainer& trainer);

 private:
  std::string path_;
  io::DirectoryLock lock_;
  std::string checkpoint_;
};

}  // namespace headgate::train
