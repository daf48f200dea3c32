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

// Builds a model's config and a run's settings from the user's options. A value without an option comes from a file,
// the task's defaults or the resumed run. Error messages name options.

namespace headgate::train {

/// The options of a model that the user gave on the command line.
struct ModelChoices {
  std::string config_file;  ///< config.json to start from; empty: the task's default model
  Given<models::kConfigKeys> keys;
  std::string gate;         ///< name of a gate, for parse_gate(); `keys` may change the gate; empty: not given
  std::string layer_types;  ///< pattern for parse_layer_types(); empty: not given
  bool match_params = false;

  /// Returns whether any option was given.
  bool any() const {
    return keys.any() || !config_file.empty() || !gate.empty() || !layer_types.empty() || match_params;
  }
};

/// The options of a run that the user gave on the command line.
using RunChoices = Given<kSettings>;

/// Returns the types of `layers` layers by repeating `pattern`. The pattern "N:M" means N layers of linear attention,
/// then M of attention. A pattern such as "gated_delta,attention,sliding" names the type of each layer. Throws Error.
std::vector<models::LayerType> parse_layer_types(const std::string& pattern, std::int64_t layers);

/// Returns a valid config. The size of the vocabulary is, in this order:
/// - the value of an option or a config file
/// - the tokenizer's number of tokens, `ids`, rounded up to a multiple of 8
/// - without a tokenizer (`ids` is 0): the bytes and, for Bos::on, kBos
///
/// Throws Error, and io::FileError for the config file.
models::DecoderConfig make_config(const ModelChoices& choices, Task task, Bos bos = Bos::off, std::int64_t ids = 0);

/// Returns the config of a run that starts from, or continues, a model with the config `model`. This is `model` itself,
/// or `model` with an added gate that does not change the output at first. Throws Error that names `path` if an option
/// contradicts the model.
models::DecoderConfig make_config_from(const ModelChoices& choices, const models::DecoderConfig& model,
                                       const std::string& path);

/// Returns the sequence length of a run that starts from `model`: the chosen length or the task's default. The model's
/// number of positions limits the default. Throws Error if the chosen length exceeds it.
std::int64_t sequence_length_from(const ModelChoices& choices, Task task, const models::DecoderConfig& model,
                                  const std::string& path);

/// Returns whether make_config(choices, task, bos, ids) returns `config`.
bool repeats_config(const ModelChoices& choices, Task task, Bos bos, std::int64_t ids,
                    const models::DecoderConfig& config);

/// Throws Error that names the option and `path` if a given option differs from `model`. Also throws if --config or
/// --match-params is given, because these cannot be compared with a model.
void require_options_of(const ModelChoices& choices, const models::DecoderConfig& model, const std::string& path);

/// Returns valid settings of a new run with sequences of `seq_len` tokens. The task defaults to text. Throws Error if
/// an option is invalid.
TrainSettings make_settings(const RunChoices& choices, std::int64_t seq_len);

/// Returns the settings of a resumed run: `run`, with the choices that --resume may change. Throws Error if any other
/// choice differs from `run`.
TrainSettings resumed_settings(const RunChoices& choices, const TrainSettings& run);

/// Formats a value as the user writes it in an option, and as --help shows it.
template <typename Value>
std::string option_value_text(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(option_word_of(value));
  } else {
    return fmt::format("{}", value);
  }
}

/// Returns the default of an option as --help shows it. `row` describes the field that the option sets.
/// of_task(task) returns a task's default config or settings, which have this field. The result is one of these:
/// - the row's own default_text, if it has one
/// - the field's value, such as "10000"
/// - the value of each task, if they differ: "text 6, bigram-backcopy 1"
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
