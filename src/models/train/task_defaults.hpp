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

/// Returns settings without data. The warm-up is default_warmup of the steps; the caller sets seq_len to that of the
/// model.
TrainSettings task_settings(Task task);

/// Returns the steps of warm-up in a run of `steps`: a tenth, at most 100.
std::int64_t default_warmup(std::int64_t steps);

}  // namespace headgate::train
