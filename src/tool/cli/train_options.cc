// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/train_options.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tool/cli/enum_option.hpp"
#include "tool/cli/threads.hpp"

namespace headgate::cli {
namespace {

using models::OptionGroup;
using train::SettingGroup;

template <typename Enum>
concept Explained = requires(Enum value) {
  explanation_of(value);
};

/// Lists the values of an enum option for --help, for instance "plain (default) or zero_centred".
/// If an overload of explanation_of() exists for the enum, adds explanations: "input (the layer's input; default), …".
/// Omits "none" unless it is the default.
/// `chosen`: the default value; empty: no value is marked as the default.
template <typename Enum>
std::string words_text(std::optional<Enum> chosen) {
  std::vector<std::string> words;
  for (const auto& row : OptionWords<Enum>::kAll) {
    const bool is_default = row.value == chosen;
    if (row.word == "none" && !is_default) continue;
    std::string note = is_default ? "default" : "";
    if constexpr (Explained<Enum>) note = std::string(explanation_of(row.value)) + (is_default ? "; default" : "");
    words.push_back(std::string(row.word) + (note.empty() ? "" : " (" + note + ")"));
  }
  std::string out = words.front();
  for (std::size_t i = 1; i < words.size(); ++i) out += (i + 1 < words.size() ? ", " : " or ") + words[i];
  return out;
}

/// Returns the help text of the option that a table row describes, with the option's default value.
/// `of_task`: function that returns the default config or settings of a training task.
template <class Row, class OfTask>
std::string help_of(const Row& row, const OfTask& of_task) {
  std::string help(row.help);
  if constexpr (std::is_enum_v<ValueOf<Row>>) {
    using Enum = ValueOf<Row>;
    const auto object = of_task(train::Task::text);
    if (row.default_text == nullptr) return help + ": " + words_text<Enum>(row.of(object));
    return Explained<Enum> ? help + ": " + words_text<Enum>(std::nullopt) : help;
  } else {
    std::string text = train::default_text(row, of_task);
    if (text.empty()) return help;
    const bool differs = text.find(' ') != std::string::npos;
    if (!row.remark.empty()) text += fmt::format("; {}", row.remark);
    return fmt::format("{} (default{} {})", help, differs ? ":" : "", text);
  }
}

/// Declares the option that a table row describes. Parsing stores the option's value in `slot`.
template <class Row, class Slot>
void declare(VerbOptions& verb, const Row& row, Slot& slot, const std::string& help) {
  using Value = ValueOf<Row>;
  const std::string option(row.option), type(row.type);
  if constexpr (kIsList<Value>) {
    if (type.ends_with("...")) {
      verb.lists(option, slot, type, help);
    } else {
      verb.values(option, slot, type, help);
    }
  } else if constexpr (std::is_enum_v<Value>) {
    declare_enum<Value>(verb, option, slot, type, help);
  } else if constexpr (std::is_same_v<Value, std::int64_t>) {
    verb.value(option, slot, type, help).range(row.range.least, row.range.most);
  } else if constexpr (std::is_same_v<Value, int>) {
    declare_threads(verb, slot, help);
  } else {
    verb.value(option, slot, type, help);
  }
}

void declare_settings(VerbOptions& verb, train::RunChoices& choices, SettingGroup group) {
  choices.for_each([&](const auto& row, auto& slot) {
    if (row.group == group && !row.option.empty()) declare(verb, row, slot, help_of(row, train::task_settings));
  });
}

void declare_keys(VerbOptions& verb, Given<models::kConfigKeys>& keys, OptionGroup group) {
  keys.for_each([&](const auto& row, auto& slot) {
    if (row.group != group || row.option.empty()) return;
    if constexpr (!kIsList<ValueOf<std::remove_cvref_t<decltype(row)>>>) {  // keys that hold lists have no option
      if (row.flag) {
        verb.flag(
            std::string(row.option), [flag = *row.flag, &slot] { slot = flag; }, std::string(row.help));
      } else {
        declare(verb, row, slot, help_of(row, train::task_model));
      }
    }
  });
}

/// Returns the names of the options that may be changed with --resume: "--include, --data, …".
std::string options_that_may_change() {
  std::string out;
  for_each_row(train::kSettings, [&out](const auto& row) {
    if (row.on_resume != train::OnResume::may_change) return;
    out += (out.empty() ? "" : ", ") + std::string(row.option);
  });
  return out;
}

void declare_run(VerbOptions& verb, TrainOptions& o) {
  verb.group("Data");
  declare_settings(verb, o.run.settings, SettingGroup::data);
  verb.group("Run");
  verb.value("--out", o.run.directory, "DIR", "The run's directory, created if missing: checkpoint/ and metrics.jsonl")
      .required();
  verb.flag("--resume", o.resume,
            fmt::format("Continue the run in --out with its own settings: the same bits as a run that was never "
                        "interrupted, at the same number of threads. These options may be given again, with data "
                        "of the same content: {}",
                        options_that_may_change()));
  verb.value("--stop-at", o.run.stop_at, "N", "Stop after step N as if interrupted there, with everything saved")
      .range(train::kFromOne.least, train::kFromOne.most);
  declare_settings(verb, o.run.settings, SettingGroup::run);
  verb.value("--log-every", o.log_every, "N", "Without a terminal, print a line every N steps (default 10)")
      .range(train::kFromOne.least, train::kFromOne.most);
  verb.group("Optimizer (AdamW)");
  declare_settings(verb, o.run.settings, SettingGroup::optimizer);
}

void declare_model(VerbOptions& verb, train::ModelChoices& model, train::RunChoices& settings) {
  verb.group("Model");
  declare_settings(verb, settings, SettingGroup::model);
  verb.value("--config", model.config_file, "FILE.json", "A config.json to start from; other options override it")
      .existing_file();
  declare_keys(verb, model.keys, OptionGroup::model);
  verb.value(
      "--layer-types", model.layer_types, "PATTERN",
      "How layers mix tokens, repeated over all layers: N:M, such as 3:1, for N layers of Gated DeltaNet and M of "
      "attention, or a list of gated_delta, attention and sliding");
  verb.group("Gate");
  verb.value("--gate", model.gate, "GATE",
             "none (default), headwise, elementwise or head-shared; or a whole name, like g2-headwise-silu-add")
      .suggests({"none", "headwise", "elementwise", "head-shared"});
  declare_keys(verb, model.keys, OptionGroup::gate);
  verb.flag("--match-params", model.match_params,
            "Shrink --ffn until there are as many parameters as without the gate");
  verb.group("Controls, to compare a gate with");
  declare_keys(verb, model.keys, OptionGroup::controls);
}

}  // namespace

Option declare_include(VerbOptions& verb, std::vector<std::string>& patterns) {
  const auto& row = row_of<train::kSettings, &train::TrainSettings::include>();
  return verb.values(std::string(row.option), patterns, std::string(row.type), std::string(row.help));
}

void declare_train_options(VerbOptions& verb, TrainOptions& options) {
  declare_run(verb, options);
  declare_model(verb, options.run.model, options.run.settings);
}

}  // namespace headgate::cli
