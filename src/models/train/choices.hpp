// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "library/core/rows.hpp"
#include "models/decoder/config_keys.hpp"
#include "models/train/settings.hpp"
#include "models/train/task_defaults.hpp"

// Makes a model's config and a run's settings from the options that a user gave and, for the rest, from the values of a
// file, a task or a resumed run. Error messages name options.

namespace headgate::train {

/// The options of a model that the user gave.
struct ModelChoices {
  std::string config_file;  ///< a config.json to start from; empty: the task's own model
  Given<models::kConfigKeys> keys;
  std::string gate;  ///< a variant's name, for parse_gate; parts of the gate among `keys` change it; empty: not given
  std::string layer_types;  ///< a pattern, for parse_layer_types; empty: not given
  bool match_params = false;

  /// Returns whether any option was given.
  bool any() const {
    return keys.any() || !config_file.empty() || !gate.empty() || !layer_types.empty() || match_params;
  }
};

/// The options of a run that the user gave.
using RunChoices = Given<kSettings>;

/// Returns the types of `layers` layers: the pattern, repeated. "N:M" stands for N layers of linear attention, then M
/// of attention; "gated_delta,attention,sliding" names each. Throws Error.
std::vector<models::LayerType> parse_layer_types(const std::string& pattern, std::int64_t layers);

/// Returns a valid config. If no option says how large its vocabulary is, it has kBos if `bos` says so, or a multiple
/// of 8 ids, at least the `ids` of a tokenizer (0: bytes are tokens). Throws Error, and io::FileError for the config
/// file.
models::DecoderConfig make_config(const ModelChoices& choices, Task task, Bos bos = Bos::off, std::int64_t ids = 0);

/// Returns the config of a run that starts from a model of config `model`, or continues such a run: the model's own,
/// but for a gate that starts as the identity. Throws Error, naming `path`, if an option contradicts the model.
models::DecoderConfig make_config_from(const ModelChoices& choices, const models::DecoderConfig& model,
                                       const std::string& path);

/// Returns how long the sequences of such a run are: as long as was chosen, or as in a new run of the task, up to the
/// positions of the model. Throws Error.
std::int64_t sequence_length_from(const ModelChoices& choices, Task task, const models::DecoderConfig& model,
                                  const std::string& path);

/// Returns whether make_config of the choices makes `config`.
bool repeats_config(const ModelChoices& choices, Task task, Bos bos, std::int64_t ids,
                    const models::DecoderConfig& config);

/// Throws Error, naming the option and `path`, unless each option says what `model` has. Refuses --config and
/// --match-params, which say nothing by themselves.
void require_options_of(const ModelChoices& choices, const models::DecoderConfig& model, const std::string& path);

/// Returns valid settings of a new run, for the task that was given, or text. `seq_len` is that of its sequences.
/// Throws Error.
TrainSettings make_settings(const RunChoices& choices, std::int64_t seq_len);

/// Returns the settings `run` of a resumed run with the choices that may change applied. Throws Error if any other
/// choice differs from `run`.
TrainSettings resumed_settings(const RunChoices& choices, const TrainSettings& run);

/// Formats a value as options and --help write it.
template <typename Value>
std::string option_value_text(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(option_word_of(value));
  } else {
    return fmt::format("{}", value);
  }
}

/// The default of a row's field, for --help: "10000", or "text 6, bigram-backcopy 1" if tasks differ, or the row's own
/// text. of_task(task): the default config or settings of the task.
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
