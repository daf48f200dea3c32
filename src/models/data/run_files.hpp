// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Names the files of a training run and of its checkpoints. Readers of a directory of texts leave them out.

namespace headgate::train {

inline constexpr const char* kCheckpointConfig = "config.json";
inline constexpr const char* kCheckpointModel = "model.safetensors";
inline constexpr const char* kCheckpointOptimizer = "optimizer.safetensors";
inline constexpr const char* kCheckpointState = "trainer_state.json";

std::string metrics_path(const std::string& run);
/// Returns where a run keeps the ids of its text (token_file.hpp).
std::string token_ids_path(const std::string& run);

/// Returns `run`/checkpoint for 0, and `run`/checkpoint.N beside it for N.
std::string numbered_checkpoint(const std::string& run, int number);

/// Returns whether `directory` holds a checkpoint, that is, a config.json. Does not read its content.
bool is_checkpoint(const std::string& directory);

/// Returns whether `directory` holds a checkpoint to resume from, that is, a trainer_state.json too.
bool is_training_checkpoint(const std::string& directory);

/// Returns whether `directory` belongs to a run: it holds metrics.jsonl and checkpoint/, or is or holds a checkpoint to
/// resume from.
bool is_run_or_checkpoint(const std::string& directory);

}  // namespace headgate::train
