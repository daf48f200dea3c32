// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/data/run_files.hpp"
#include "models/decoder/config.hpp"
#include "models/decoder/parameters.hpp"
#include "models/train/trained_part.hpp"

// A checkpoint is a directory in the layout of Hugging Face:
//   config.json            the model
//   modeling_headgate.py   its code for transformers, where they have none
//   model.safetensors      its parameters, one tensor each, by their names
//   optimizer.safetensors  AdamW's moments of the trained parameters, "NAME.first_moment" and "NAME.second_moment"
//   trainer_state.json     the trainer's state
//   tokenizer.json, tokenizer_config.json, generation_config.json  of a model that reads a tokenizer's ids
// A model without optimizer.safetensors and trainer_state.json cannot be trained further.

namespace headgate::train {

/// A checkpoint to save. Buffers are flat, in the layout of `table`, moments in that of trained_parameters(table,
/// trained).
struct CheckpointView {
  const models::DecoderConfig& config;
  const models::ParameterTable& table;
  const float* parameters = nullptr;       ///< (total)
  const float* first_moment = nullptr;     ///< (total of the trained), or null
  const float* second_moment = nullptr;    ///< (total of the trained), or null
  std::string trainer_state;               ///< JSON text, or empty
  std::vector<NamedText> text_files = {};  ///< SequenceSource::model_files
  TrainedPart trained = TrainedPart::all;  ///< what `trainer_state` says
  /// Whether BOS stands before a text of a model that reads bytes; empty: a tokenizer decides.
  std::optional<Bos> bos = std::nullopt;
};

/// A checkpoint that was read.
struct Checkpoint {
  models::DecoderConfig config;
  std::vector<float> parameters;     ///< (total) of ParameterTable(config)
  std::vector<float> first_moment;   ///< (total of the trained), or empty
  std::vector<float> second_moment;  ///< (total of the trained), or empty
  std::string trainer_state;         ///< JSON text, unchecked, or empty
};

/// Which files of a checkpoint to read.
enum class CheckpointParts { model, all };

/// Writes a checkpoint to `directory` atomically: the old one remains until the new one is complete on the disk, even
/// if the process is killed. Creates parent directories. Throws io::WriteError, and io::NotReplaceable for a directory
/// that holds anything but a checkpoint's files; the old checkpoint then remains.
void save_checkpoint(const std::string& directory, const CheckpointView& checkpoint);

/// Returns the names of a checkpoint's files.
const std::vector<std::string>& checkpoint_files();

/// Throws io::NotReplaceable if `directory` holds files that are not part of a checkpoint.
void check_checkpoint_replaceable(const std::string& directory);

/// Returns the number of steps that a checkpoint was trained for. Throws io::FileError.
std::int64_t checkpoint_step(const std::string& directory);

/// Returns the text of its trainer_state.json, unchecked; empty if there is none. Throws io::FileError.
std::string read_trainer_state(const std::string& directory);

/// Loads and checks a checkpoint; nothing is used before it is checked. Throws io::FileError, naming the file and what
/// is wrong: truncated, corrupt, of wrong shape, too large, or not fitting the config. all: requires moments and
/// trainer state. model: reads no moments, and the trainer state only if present.
Checkpoint load_checkpoint(const std::string& directory, CheckpointParts parts);

}  // namespace headgate::train
