// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/io/run_state.hpp"

// Defines the names of the files of a training run and of its checkpoints. Readers of text directories skip these
// files.

namespace headgate::train {

inline constexpr const char* kCheckpointConfig = "config.json";
inline constexpr const char* kCheckpointModel = "model.safetensors";
inline constexpr const char* kCheckpointOptimizer = "optimizer.safetensors";
inline constexpr const char* kCheckpointState = io::kRunState;

std::string metrics_path(const std::string& run);
/// Returns the path of the run's file of token ids (see token_file.hpp).
std::string token_ids_path(const std::string& run);

/// Returns the path of a checkpoint of `run`: `run`/checkpoint for number 0, `run`/checkpoint.N for number N.
std::string numbered_checkpoint(const std::string& run, int number);

/// Returns whether `directory` contains the config.json of a checkpoint. Does not read the file.
bool is_checkpoint(const std::string& directory);

/// Returns whether `directory` contains config.json and trainer_state.json, so that training can resume from it.
bool is_training_checkpoint(const std::string& directory);

/// Returns whether `directory` is a run or a checkpoint to resume from, which is true in two cases:
/// - `directory` contains metrics.jsonl and checkpoint/.
/// - Training can resume from `directory` or `directory`/checkpoint.
bool is_run_or_checkpoint(const std::string& directory);

}  // namespace headgate::train
