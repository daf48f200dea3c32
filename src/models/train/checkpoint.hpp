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

// A checkpoint is a directory in the layout of Hugging Face. It has these files:
//   config.json: describes the model.
//   modeling_headgate.py: has the model's code for `transformers`, if `transformers` has none.
//   model.safetensors: has one tensor, with a name, for each parameter tensor of the model.
//   optimizer.safetensors: has AdamW's moments of the trained tensors, "NAME.first_moment" and "NAME.second_moment".
//   trainer_state.json: has the trainer's state.
//   tokenizer.json, tokenizer_config.json, generation_config.json: exist only for a model with a tokenizer.
// A model without optimizer.safetensors and trainer_state.json cannot be trained further.

namespace headgate::train {

/// A checkpoint to save. Parameters are one flat buffer in the layout of `table`. Moments have the layout of
/// trained_parameters(table, trained).
struct CheckpointView {
  const models::DecoderConfig& config;
  const models::ParameterTable& table;
  const float* parameters = nullptr;       ///< (total)
  const float* first_moment = nullptr;     ///< AdamW's first moments, one per trained parameter; null: not saved
  const float* second_moment = nullptr;    ///< AdamW's second moments, one per trained parameter; null: not saved
  std::string trainer_state;               ///< text of trainer_state.json; empty: not saved
  std::vector<NamedText> text_files = {};  ///< files of the tokenizer, from SequenceSource::model_files()
  TrainedPart trained = TrainedPart::all;  ///< which parameters were trained, as in `trainer_state`
  /// Whether BOS precedes a text, for a model that reads bytes. Empty for a model with a tokenizer.
  std::optional<Bos> bos = std::nullopt;
};

/// A checkpoint that was loaded.
struct Checkpoint {
  models::DecoderConfig config;
  std::vector<float> parameters;     ///< all parameters, in the layout of ParameterTable(config)
  std::vector<float> first_moment;   ///< AdamW's first moments, one per trained parameter; empty: not loaded
  std::vector<float> second_moment;  ///< AdamW's second moments, one per trained parameter; empty: not loaded
  std::string trainer_state;         ///< unchecked text of trainer_state.json; may be empty
};

/// Selects what to read from a checkpoint: only the model, or also the moments and the trainer state.
enum class CheckpointParts { model, all };

/// Writes a checkpoint to `directory` atomically, and creates parent directories. The old checkpoint remains until the
/// new one is completely on disk, even if the process is killed. Throws io::WriteError, or io::NotReplaceable if the
/// directory holds files that are not part of a checkpoint; the old checkpoint then remains.
void save_checkpoint(const std::string& directory, const CheckpointView& checkpoint);

/// Returns the names of a checkpoint's files.
const std::vector<std::string>& checkpoint_files();

/// Throws io::NotReplaceable if `directory` holds files that are not part of a checkpoint.
void check_checkpoint_replaceable(const std::string& directory);

/// Returns the number of steps that a checkpoint was trained for. Throws io::FileError.
std::int64_t checkpoint_step(const std::string& directory);

/// Returns the text of the checkpoint's trainer_state.json without checking it. Returns an empty string if the file is
/// missing, or if it is a file of transformers' Trainer. Throws io::FileError.
std::string read_trainer_state(const std::string& directory);

/// Loads a checkpoint and validates all of it before use.
/// - CheckpointParts::all reads the model, the moments and the trainer state. All must exist.
/// - CheckpointParts::model reads the model, and the trainer state if there is one.
///
/// Throws io::FileError that names the file and the error, such as a truncated file or a wrong shape.
Checkpoint load_checkpoint(const std::string& directory, CheckpointParts parts);

}  // namespace headgate::train
