// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "core/rows.hpp"
#include "models/config.hpp"
#include "train/settings.hpp"
#include "train/task_defaults.hpp"

// From what a user gives to a model's config and a run's settings: what was given, laid over the values of a file, of a
// task or of a run. Errors name options.

namespace headgate::train {

/// What was given of a model.
struct ModelChoices {
  std::string config_file;  ///< a config.json to start from; empty: the task's own model
  Given<models::kConfigKeys> keys;
  std::string gate;  ///< a variant's name, for parse_gate; the gate's parts among `keys` change it; empty: not given
  bool match_params = false;

  /// Whether anything was given.
  bool any() const { return keys.any() || !config_file.empty() || !gate.empty() || match_params; }
};

/// What was given of a run.
using RunChoices = Given<kSettings>;

/// The model's config, valid. Throws Error, and io::FileError for the file.
models::DecoderConfig make_config(const ModelChoices& choices, Task task);

/// The settings of a fresh run, valid, for the task that was given, or text. `seq_len` is the model's. Throws Error.
TrainSettings make_settings(const RunChoices& choices, std::int64_t seq_len);

/// A run's settings with those choices over them that may change on the way. Throws Error for any other that differs.
TrainSettings resumed_settings(const RunChoices& choices, const TrainSettings& run);

/// A value as options and --help have it.
template <typename Value>
std::string option_value_text(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(option_word_of(value));
  } else {
    return fmt::format("{}", value);
  }
}

/// The default of a field by row: "10000", or "text 6, bigram-backcopy 1" where tasks differ, or the row's own text.
/// of_task(task): the config or settings that the task has by default.
template <class Row, class OfTask>
std::string default_text(const Row& row, const OfTask& of_task) {
  if (row.default_text != nullptr) return row.default_text;
  if constexpr (kIsList<ValueOf<Row>>) {
    return "";
  } else {
    std::string first, all;
    bool differ = false;
    for (const auto& task : Words<Task>::kAll) {
      const auto object = of_task(task.value);
      const std::string text = option_value_text(row.of(object));
      if (all.empty()) first = text;
      differ = differ || text != first;
      all += fmt::format("{}{} {}", all.empty() ? "" : ", ", task.word, text);
    }
    return differ ? all : first;
  }
}

}  // namespace headgate::train
