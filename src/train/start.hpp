// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "train/choices.hpp"
#include "train/data.hpp"
#include "train/run_directory.hpp"
#include "train/trainer.hpp"

namespace headgate::train {

/// Which run is to be started or resumed.
struct RunRequest {
  ModelChoices model;
  RunChoices settings;
  std::string directory;
};

/// A run ready to go: the trainer reads from the source, and no other process uses the directory.
struct Run {
  std::unique_ptr<RunDirectory> directory;
  std::unique_ptr<SequenceSource> source;
  std::unique_ptr<Trainer> trainer;
};

/// Told one line on something that the user should know and that is no error.
using Note = std::function<void(const std::string& line)>;

/// Both throw Error, its message naming options, and io::FileError. Nothing is written where they throw.
Run start_run(const RunRequest& request, const Note& note);
Run resume_run(const RunRequest& request, const Note& note);

}  // namespace headgate::train
