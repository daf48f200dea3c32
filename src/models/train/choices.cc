// SPDX-License-Identifier: Apache-2.0
#include "models/train/choices.hpp"

#include <algorithm>

#include "library/core/check.hpp"
#include "models/families/config_file.hpp"
#include "models/layers/gate_variant.hpp"

namespace headgate::train {
namespace {

using layers::GateVariant;
using models::DecoderConfig;
using models::kConfigKeys;

template <auto kMember>
constexpr std::string_view option_of() {
  if constexpr (index_of_row(kConfigKeys, kMember) < std::tuple_size_v<decltype(kConfigKeys)>) {
    return row_of<kConfigKeys, kMember>().option;
  } else {
    return row_of<kSettings, kMember>().option;
  }
}

/// Derives sizes that were not given from those that were.
void derive_sizes(DecoderConfig& config, const Given<kConfigKeys>& keys) {
  const bool dim = keys.of<&DecoderConfig::dim>().has_value();
  const bool heads = keys.of<&DecoderConfig::heads>().has_value();
  if (heads && !keys.of<&DecoderConfig::kv_heads>()) {
    config.kv_heads = config.heads % 2 == 0 ? config.heads / 2 : config.heads;
  }
  if (dim && !keys.of<&DecoderConfig::ffn>()) config.ffn = 3 * config.dim;
  if ((dim || heads) && !keys.of<&DecoderConfig::head_dim>()) {
    require(config.heads >= 1 && config.dim % config.heads == 0, "{} {} is not a multiple of {} {}: give {}",
            option_of<&DecoderConfig::dim>(), config.dim, option_of<&DecoderConfig::heads>(), config.heads,
            option_of<&DecoderConfig::head_dim>());
    config.head_dim = config.dim / config.heads;
  }
}

/// Applies --gate and --gate-site to `before`. The other options of the gate are applied after this.
GateVariant chosen_gate(const GateVariant& before, const ModelChoices& choices) {
  GateVariant gate = before;
  if (!choices.gate.empty()) {
    gate = layers::parse_gate(choices.gate);
    if (gate.sinks == layers::SinkKind::none) gate.sinks = before.sinks;
  }
  if (const auto& site = choices.keys.of<&GateVariant::site>()) {
    gate.site = *site;
    require(choices.gate != "none", "{} and --gate none contradict each other", option_of<&GateVariant::site>());
    if (has_gate(gate) && gate.fn == GateFn::none) gate.fn = GateFn::sigmoid;
  }
  return gate;
}

/// Throws if options of a gate were given without a gate.
void require_gate(const GateVariant& gate, const Given<kConfigKeys>& keys) {
  keys.for_each([&](const auto& row, const auto& slot) {
    const bool part = row.group == models::OptionGroup::gate && keys.is_given(slot);
    require(!part || has_gate(gate) || row.name == row_of<kConfigKeys, &GateVariant::site>().name, "{} needs --gate",
            row.option);
  });
}

/// Throws if --eval-tokens is less than a sequence, since evaluations use whole sequences.
void require_whole_sequence(const RunChoices& choices, const TrainSettings& settings) {
  const auto& tokens = choices.of<&TrainSettings::eval_tokens>();
  require(!tokens || *tokens >= settings.seq_len, "{} {} is less than a sequence, which has {} tokens",
          option_of<&TrainSettings::eval_tokens>(), tokens.value_or(0), settings.seq_len);
}

}  // namespace

DecoderConfig make_config(const ModelChoices& choices, Task task, Bos bos) {
  const bool from_file = !choices.config_file.empty();
  DecoderConfig config = from_file ? models::read_config(choices.config_file) : task_model(task);
  if (!from_file && bos == Bos::on) config.vocab = kVocabWithBos;
  const GateVariant gate = chosen_gate(config.gate, choices);
  require_gate(gate, choices.keys);
  config.gate = gate;
  choices.keys.put_into(config);
  if (choices.keys.of<&GateVariant::bias_init>()) config.gate.bias = layers::GateBias::learned;
  if (!from_file) derive_sizes(config, choices.keys);
  models::validate(config, models::NamesIn::command_line);
  return choices.match_params ? models::match_params(config) : config;
}

TrainSettings make_settings(const RunChoices& choices, std::int64_t seq_len) {
  TrainSettings settings = task_settings(choices.of<&TrainSettings::task>().value_or(Task::text));
  choices.put_into(settings);
  settings.seq_len = seq_len;
  require(settings.task == Task::text || choices.of<&TrainSettings::bos>().value_or(Bos::on) == Bos::on,
          "{} off: sequences of {} {} begin with that token", option_of<&TrainSettings::bos>(),
          option_of<&TrainSettings::task>(), word_of(settings.task));
  require_whole_sequence(choices, settings);
  settings.eval_tokens = std::max(settings.eval_tokens, seq_len);
  Schedule& schedule = settings.schedule;
  if (!choices.of<&Schedule::warmup>()) schedule.warmup = default_warmup(schedule.steps);
  require(schedule.warmup <= schedule.steps, "{} {} is more than {} {}", option_of<&Schedule::warmup>(),
          schedule.warmup, option_of<&Schedule::steps>(), schedule.steps);
  validate(settings);
  return settings;
}

TrainSettings resumed_settings(const RunChoices& choices, const TrainSettings& run) {
  TrainSettings now = run;
  choices.for_each([&](const auto& row, const auto& slot) {
    if (!choices.is_given(slot)) return;
    const auto& value = choices.value(slot);
    if constexpr (!kIsList<std::remove_cvref_t<decltype(value)>>) {
      require(row.on_resume == OnResume::may_change || value == row.of(run),
              "{} {} is not the run's {}, and cannot change on --resume", row.option, option_value_text(value),
              option_value_text(row.of(run)));
    }
    row.of(now) = value;
  });
  require_whole_sequence(choices, now);
  validate(now);
  return now;
}

}  // namespace headgate::train
