// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/config.hpp"
#include "train/settings.hpp"

// What a task is trained with where nothing else is asked for.

namespace headgate::train {

models::DecoderConfig task_model(Task task);

/// Without data; the warm-up is default_warmup's for the steps, and seq_len is to be the model's.
TrainSettings task_settings(Task task);

/// Steps of warm-up in a run of `steps`: a tenth, at most 100.
std::int64_t default_warmup(std::int64_t steps);

}  // namespace headgate::train
