// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "models/data/data.hpp"
#include "models/train/choices.hpp"
#include "models/train/run_directory.hpp"
#include "models/train/trainer.hpp"

namespace headgate::train {

/// Describes the run to start or resume.
struct RunRequest {
  ModelChoices model;
  RunChoices settings;
  std::string directory;
  /// Step after which the run stops, as if the user interrupted it.
  std::optional<std::int64_t> stop_at = std::nullopt;
};

/// A run that is ready to train: the trainer reads from the source, and the directory is locked.
struct Run {
  std::unique_ptr<RunDirectory> directory;  ///< null except in the leading process of the group
  std::unique_ptr<SequenceSource> source;
  std::unique_ptr<Trainer> trainer;
};

/// Callback for notes to the user that are not errors, one line each.
using Note = std::function<void(const std::string& line)>;

/// Thrown if another process of the group cannot begin the run. That process throws the actual error.
class OtherProcessFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// start_run() starts a new run, and resume_run() continues one. All processes of the group call the same function at
/// the same time. The group must outlive the run.
///
/// Both throw io::FileError, and Error with messages that name options. They also throw if the processes differ in
/// data, settings, parameters or vector target. If one process fails, the others throw OtherProcessFailed.
///
/// A run that fails to begin writes no file but the token ids. All processes read this file from the leading process's
/// directory.
Run start_run(const RunRequest& request, const Note& note, ProcessGroup& group = alone());
Run resume_run(const RunRequest& request, const Note& note, ProcessGroup& group = alone());

}  // namespace headgate::train
