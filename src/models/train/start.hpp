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

/// Which run to start or resume.
struct RunRequest {
  ModelChoices model;
  RunChoices settings;
  std::string directory;
  std::optional<std::int64_t> stop_at = std::nullopt;  ///< the step after which the run stops, as if interrupted there
};

/// A run that is ready to train: the trainer reads from the source, and the directory is locked.
struct Run {
  std::unique_ptr<RunDirectory> directory;  ///< only in the process that leads its group
  std::unique_ptr<SequenceSource> source;
  std::unique_ptr<Trainer> trainer;
};

/// Called with one line that the user should know but that is not an error.
using Note = std::function<void(const std::string& line)>;

/// Thrown if another process of the group cannot begin the run; that process throws the reason.
class OtherProcessFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Start a new run or resume one, together in all processes of the group, which must outlive the run. Both throw Error,
/// whose message names options, and io::FileError, also if the processes do not agree on data, settings, parameters or
/// vector target; the other processes then throw OtherProcessFailed. Nothing but the file of ids is written in that
/// case, which the other processes read in the leading one's directory.
Run start_run(const RunRequest& request, const Note& note, ProcessGroup& group = alone());
Run resume_run(const RunRequest& request, const Note& note, ProcessGroup& group = alone());

}  // namespace headgate::train
