// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Where the files of a training run and of its checkpoints lie. Whoever reads a directory of texts leaves these out.

namespace headgate::train {

inline constexpr const char* kCheckpointConfig = "config.json";
inline constexpr const char* kCheckpointModel = "model.safetensors";
inline constexpr const char* kCheckpointOptimizer = "optimizer.safetensors";
inline constexpr const char* kCheckpointState = "trainer_state.json";

std::string metrics_path(const std::string& run);

/// `run`/checkpoint for 0, `run`/checkpoint.N beside it.
std::string numbered_checkpoint(const std::string& run, int number);

/// Whether `directory` holds a checkpoint (it has a config.json); its content is not looked at.
bool is_checkpoint(const std::string& directory);

/// Whether `directory` holds a checkpoint to resume from (it has a trainer_state.json too).
bool is_training_checkpoint(const std::string& directory);

/// Whether `directory` belongs to a run: it holds metrics.jsonl and checkpoint/, or is or holds a checkpoint to resume
/// from.
bool is_run_or_checkpoint(const std::string& directory);

}  // namespace headgate::train
