// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/decoder/config.hpp"
#include "models/tokenize/tokenizer.hpp"
#include "models/train/settings.hpp"

// Defines the default model and settings of each task.

namespace headgate::train {

models::DecoderConfig task_model(Task task);

/// Vocabulary of models whose sequences begin with kBos.
inline constexpr std::int64_t kVocabWithBos = tokenize::kVocabWithByteBos;

/// Returns the default settings of a task, without data. The number of warm-up steps is default_warmup(steps). The
/// caller sets seq_len to the model's sequence length.
TrainSettings task_settings(Task task);

/// Returns the default number of warm-up steps for a run of `steps` steps: a tenth, at most 100.
std::int64_t default_warmup(std::int64_t steps);

}  // namespace headgate::train
