// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/directory_lock.hpp"
#include "train/trainer.hpp"

// A run lives in a directory of its own:
//   metrics.jsonl  see metrics_log.hpp
//   checkpoint/    see checkpoint.hpp
//   checkpoint.1/, checkpoint.2/, …  beside it, where a save found files in the last one that are no part of a
//   checkpoint

namespace headgate::train {

std::string metrics_path(const std::string& run);

/// Whether a run wrote `directory`: it holds metrics beside a checkpoint/, a checkpoint to go on from, or is one
/// itself.
bool is_run_or_checkpoint(const std::string& directory);

/// The directories in `run` that hold a checkpoint, that of most steps first. Throws io::FileError where there are
/// several and one of them does not tell its step: which is the newest is then not known.
std::vector<std::string> checkpoints_of(const std::string& run);

/// The first of checkpoints_of; `run`/checkpoint where there is none.
std::string newest_checkpoint(const std::string& run);

/// Throws io::FileError where no fresh run may begin: `run` holds a checkpoint, the metrics of a run, or a checkpoint/
/// that could not be replaced.
void require_no_run(const std::string& run);

enum class RunStart { fresh, resumed };

/// A run's directory, which no other trainer may use while the object lives.
class RunDirectory {
 public:
  /// fresh: made if missing (its parent is not), and as require_no_run demands. resumed: it is there. Throws
  /// io::FileError, also where another process has it, metrics.jsonl is no run's, or the newest checkpoint could not be
  /// replaced.
  RunDirectory(const std::string& path, RunStart start);

  const std::string& path() const { return path_; }
  /// The newest checkpoint, which the next save replaces.
  const std::string& checkpoint() const { return checkpoint_; }
  /// Why other trainers are not kept out, where the file system has no locks; empty where they are.
  const std::string& lock_unavailable() const { return lock_.unavailable(); }

  /// Replaces the newest checkpoint or, where foreign files are in its directory, saves beside it; checkpoint() is then
  /// the new one. Throws io::WriteError (what was saved last stays), and Diverged.
  void save(const Trainer& trainer);

 private:
  std::string path_;
  io::DirectoryLock lock_;
  std::string checkpoint_;
};

}  // namespace headgate::train
