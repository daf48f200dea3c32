// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config.hpp"
#include "models/parameters.hpp"

// A checkpoint is a directory in the Hugging Face way:
//   config.json            the model
//   model.safetensors      its parameters, one tensor each, by their names
//   optimizer.safetensors  AdamW's moments, "NAME.first_moment" and "NAME.second_moment"
//   trainer_state.json     the trainer's state
// The last two are absent from a model that is not to be trained on.

namespace headgate::train {

/// What is saved. Buffers are flat, laid out as `table` has it.
struct CheckpointView {
  const models::DecoderConfig& config;
  const models::ParameterTable& table;
  const float* parameters = nullptr;     ///< (total)
  const float* first_moment = nullptr;   ///< (total), or null
  const float* second_moment = nullptr;  ///< (total), or null
  std::string trainer_state;             ///< JSON text, or empty
};

/// What was read.
struct Checkpoint {
  models::DecoderConfig config;
  std::vector<float> parameters;     ///< (total) of ParameterTable(config)
  std::vector<float> first_moment;   ///< (total), or empty
  std::vector<float> second_moment;  ///< (total), or empty
  std::string trainer_state;         ///< JSON text, unchecked, or empty
};

/// Which of a checkpoint's files are wanted.
enum class CheckpointParts { model, all };

/// Puts a checkpoint at `directory`, over the one that is there, whole or not at all, whenever the process ends: until
/// the new one is on the disk under its name, the old one is. Parent directories are made. Throws io::WriteError, and
/// io::NotReplaceable for a directory that holds anything but a checkpoint's files; the old one then stays.
void save_checkpoint(const std::string& directory, const CheckpointView& checkpoint);

/// Whether `directory` holds a checkpoint (it has a config.json); its content is not looked at.
bool is_checkpoint(const std::string& directory);

/// Whether it is one to go on training from (it has a trainer_state.json too).
bool is_training_checkpoint(const std::string& directory);

/// Throws io::NotReplaceable where save_checkpoint would find another's files in `directory`.
void check_checkpoint_replaceable(const std::string& directory);

/// The steps that a checkpoint's trainer has done. Throws io::FileError.
std::int64_t checkpoint_step(const std::string& directory);

/// Throws io::FileError, naming the file and what is wrong: truncated, corrupt, mis-shaped, oversized, or not fitting
/// the config. Files are hostile. With `all`, moments and trainer state must be there; with `model`, moments are not
/// looked at, and the trainer state is read where there is one.
Checkpoint load_checkpoint(const std::string& directory, CheckpointParts parts);

}  // namespace headgate::train
