// SPDX-License-Identifier: Apache-2.0
#include "models/train/choices.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "library/core/check.hpp"
#include "models/families/config_file.hpp"
#include "models/io/input_file.hpp"
#include "models/layers/gate_variant.hpp"

namespace headgate::train {
namespace {

using layers::GateVariant;
using models::DecoderConfig;
using models::kConfigKeys;
using models::LayerType;

template <auto kMember>
constexpr std::string_view option_of() {
  if constexpr (index_of_row(kConfigKeys, kMember) < std::tuple_size_v<decltype(kConfigKeys)>) {
    return row_of<kConfigKeys, kMember>().option;
  } else {
    return row_of<kSettings, kMember>().option;
  }
}

/// Derives the sizes that the user did not give from the given ones.
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

/// Returns the gate `before` with --gate and --gate-site applied. Ignores the other options of the gate.
GateVariant chosen_gate(const GateVariant& before, const ModelChoices& choices) {
  GateVariant gate = before;
  if (!choices.gate.empty()) {
    gate = layers::parse_gate(choices.gate);
    if (gate.sinks == layers::SinkKind::none) gate.sinks = before.sinks;
  }
  if (const auto& site = choices.keys.of<&GateVariant::site>()) {
    gate.site = *site;
    const bool has_both = !choices.gate.empty() && (choices.gate == "none" || !has_gate(gate));
    require(!has_both, "{} {} and --gate {} contradict each other", option_of<&GateVariant::site>(), word_of(*site),
            choices.gate);
    if (!has_gate(gate)) gate = {.output_control = gate.output_control, .sinks = gate.sinks};
    if (has_gate(gate) && gate.fn == GateFn::none) gate.fn = GateFn::sigmoid;
  }
  return gate;
}

constexpr std::string_view kLayerTypesOption = "--layer-types";

struct LayerWord {
  std::string_view word;
  LayerType type;
};
constexpr std::array<LayerWord, 3> kLayerWords{{{"gated_delta", LayerType::linear_attention},
                                                {"attention", LayerType::full_attention},
                                                {"sliding", LayerType::sliding_attention}}};

[[noreturn]] void fail_layer_types(const std::string& pattern) {
  throw Error(fmt::format("{} '{}' is neither N:M, such as 3:1, nor a list of {}, {} and {}", kLayerTypesOption,
                          io::printable(pattern), kLayerWords[0].word, kLayerWords[1].word, kLayerWords[2].word));
}

/// Parses "N:M": N layers of linear attention and M of attention. Returns false if `text` has another form.
bool read_ratio(const std::string& text, std::int64_t& linear, std::int64_t& attention) {
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, linear);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != ':') return false;
  const auto second = std::from_chars(first.ptr + 1, end, attention);
  const auto fits = [](std::int64_t count) { return count >= 0 && count <= models::kMaxLayers; };
  return second.ec == std::errc{} && second.ptr == end && fits(linear) && fits(attention) && linear + attention > 0;
}

/// Applies --layer-types. If the config file does not set the heads and the head size of linear attention, copies those
/// of attention.
void apply_layer_types(DecoderConfig& config, const std::string& pattern) {
  if (pattern.empty()) return;
  config.layer_types = parse_layer_types(pattern, config.layers);
  models::LinearLayers& linear = config.linear;
  if (!has_layer(config, LayerType::linear_attention) || linear.key_heads > 0) return;
  linear.key_heads = linear.value_heads = config.heads;
  linear.key_dim = linear.value_dim = config.head_dim;
}

/// Throws Error if a window is set, but --layer-types gives no layer sliding attention.
void require_use_of_window(const DecoderConfig& config, const std::string& pattern) {
  require(pattern.empty() || config.window == 0 || has_layer(config, LayerType::sliding_attention),
          "{} {}: {} {} has no layer of sliding attention; write sliding for those with the window",
          option_of<&DecoderConfig::window>(), config.window, kLayerTypesOption, io::printable(pattern));
}

/// Throws Error if the model has no layer of softmax attention, but has parts that only such layers use: a gate, a
/// control, sinks or biases of q, k and v.
void require_use_of_attention(const DecoderConfig& config) {
  if (has_layer(config, LayerType::full_attention) || has_layer(config, LayerType::sliding_attention)) return;
  const std::string reason =
      fmt::format("acts on layers of attention, but all {} layers are linear attention", config.layers);
  const std::string gate = layers::gate_name(config.gate);
  require(gate == layers::gate_name({}), "--gate {} {}", gate, reason);
  require(config.qkv_bias == models::QkvBias::none, "{} {}", option_of<&DecoderConfig::qkv_bias>(), reason);
}

/// Throws Error if the user gave options of a gate but the model has no gate.
void require_gate(const GateVariant& gate, const Given<kConfigKeys>& keys) {
  keys.for_each([&](const auto& row, const auto& slot) {
    const bool part = row.group == models::OptionGroup::gate && keys.is_given(slot);
    require(!part || has_gate(gate) || row.name == row_of<kConfigKeys, &GateVariant::site>().name, "{} needs --gate",
            row.option);
  });
}

/// Describes a gate that initially does not change its input x. The gate's matrix starts at 0, so all gate logits are
/// 0. With the gate function g, either x·g(0) = x (GateOp::mul) or x + g(0) = x (GateOp::add).
struct IdentityGate {
  GateFn fn;
  GateOp op;
};
constexpr std::array<IdentityGate, 3> kIdentityGates{
    {{GateFn::sigmoid2, GateOp::mul}, {GateFn::silu, GateOp::add}, {GateFn::identity, GateOp::add}}};

/// Throws Error if adding `gate` to a model would change the model's output before training.
void require_identity(const GateVariant& gate) {
  std::string known;
  bool is_identity = false;
  for (const IdentityGate& each : kIdentityGates) {
    is_identity = is_identity || (each.fn == gate.fn && each.op == gate.op);
    known += fmt::format("{}{}-{}", known.empty() ? "" : ", ", word_of(each.fn), word_of(each.op));
  }
  require(is_identity, "--gate {} with --init: it does not start as the identity; those of {} do", gate_name(gate),
          known);
  require(gate.bias_init == 0.0, "{} {} with --init: the gate would not start as the identity",
          option_of<&GateVariant::bias_init>(), gate.bias_init);
  require(gate.init_std == 0.0, "{} {} with --init: the gate would not start as the identity",
          option_of<&GateVariant::init_std>(), gate.init_std);
}

/// Returns the gate of a run that starts from `model`. `config` is the model's config with the user's options applied.
/// Throws Error if the options contradict the model's gate, or add a gate that changes the model's output.
GateVariant gate_from(const DecoderConfig& config, const ModelChoices& choices, const DecoderConfig& model,
                      const std::string& path) {
  GateVariant gate = config.gate;
  require(gate.sinks == model.gate.sinks && gate.output_control == model.gate.output_control,
          "--gate {} with --init: its sinks or control are not those of {} and would change it from the start",
          choices.gate, path);
  if (has_gate(model.gate)) {
    require(gate_name(gate) == gate_name(model.gate), "--gate {}: {} has the gate {}", gate_name(gate), path,
            gate_name(model.gate));
    return model.gate;
  }
  if (!has_gate(gate)) return model.gate;
  require_use_of_attention(config);
  gate.init_std = choices.keys.of<&GateVariant::init_std>().value_or(0.0);
  require_identity(gate);
  return gate;
}

/// Throws Error if the user gave the option of the config key `row` with a value that differs from the model's value.
template <class Row, class Slot>
void require_same(const Row& row, const Slot& slot, const DecoderConfig& model, const std::string& path) {
  if (!Given<kConfigKeys>::is_given(slot)) return;
  if constexpr (!kIsList<ValueOf<Row>>) {
    const std::string given = row.flag ? "" : fmt::format(" {}", option_value_text(Given<kConfigKeys>::value(slot)));
    require(Given<kConfigKeys>::value(slot) == row.of(model), "{}{}: {} has {}", row.option, given, path,
            option_value_text(row.of(model)));
  }
}

/// Throws Error if the user gave --layer-types, and the model's layers have other types.
void require_same_layers(const ModelChoices& choices, const DecoderConfig& model, const std::string& path) {
  if (choices.layer_types.empty()) return;
  const std::vector<LayerType> types = parse_layer_types(choices.layer_types, model.layers);
  bool same = std::ssize(types) == model.layers;
  for (std::size_t layer = 0; same && layer < types.size(); ++layer) {
    same = types[layer] == (model.layer_types.empty() ? LayerType::full_attention : model.layer_types[layer]);
  }
  require(same, "{} {}: {} has other layers", kLayerTypesOption, io::printable(choices.layer_types), path);
}

/// Throws Error if --eval-tokens is less than one sequence, since evaluations use whole sequences.
void require_whole_sequence(const RunChoices& choices, const TrainSettings& settings) {
  const auto& tokens = choices.of<&TrainSettings::eval_tokens>();
  require(!tokens || *tokens >= settings.seq_len, "{} {} is less than a sequence, which has {} tokens",
          option_of<&TrainSettings::eval_tokens>(), tokens.value_or(0), settings.seq_len);
}

}  // namespace

std::vector<LayerType> parse_layer_types(const std::string& pattern, std::int64_t layers) {
  std::vector<LayerType> period;
  std::int64_t linear = 0, attention = 0;
  if (read_ratio(pattern, linear, attention)) {
    period.assign(static_cast<std::size_t>(linear), LayerType::linear_attention);
    period.insert(period.end(), static_cast<std::size_t>(attention), LayerType::full_attention);
  } else {
    std::istringstream words(pattern);
    for (std::string word; std::getline(words, word, ',');) {
      const auto row = std::find_if(kLayerWords.begin(), kLayerWords.end(),
                                    [&word](const LayerWord& each) { return each.word == word; });
      if (row == kLayerWords.end()) fail_layer_types(pattern);
      period.push_back(row->type);
    }
  }
  if (period.empty()) fail_layer_types(pattern);
  std::vector<LayerType> types;
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(std::max<std::int64_t>(layers, 0)); ++layer) {
    types.push_back(period[layer % period.size()]);
  }
  return types;
}

DecoderConfig make_config(const ModelChoices& choices, Task task, Bos bos, std::int64_t ids) {
  const bool from_file = !choices.config_file.empty();
  DecoderConfig config = from_file ? models::read_config(choices.config_file) : task_model(task);
  if (!from_file && bos == Bos::on) config.vocab = kVocabWithBos;
  constexpr std::int64_t kMultiple = 8;
  if (!from_file && ids > 0) config.vocab = (ids + kMultiple - 1) / kMultiple * kMultiple;
  const GateVariant gate = chosen_gate(config.gate, choices);
  require_gate(gate, choices.keys);
  config.gate = gate;
  choices.keys.put_into(config);
  if (choices.keys.of<&GateVariant::bias_init>()) config.gate.bias = layers::GateBias::learned;
  if (!from_file) derive_sizes(config, choices.keys);
  apply_layer_types(config, choices.layer_types);
  require_use_of_window(config, choices.layer_types);
  require_use_of_attention(config);
  models::validate(config, models::NamesIn::command_line);
  config = models::canonical_config(config);
  if (!choices.match_params) return config;
  // Permits --match-params together with --gate none, so that a script can give all models of a comparison the same
  // options.
  require(
      !choices.gate.empty() || models::parameter_count(config) != models::parameter_count(models::baseline_of(config)),
      "--match-params: the model has no parameters beyond those without a gate; it needs a --gate");
  return models::match_params(config);
}

DecoderConfig make_config_from(const ModelChoices& choices, const DecoderConfig& model, const std::string& path) {
  require(choices.config_file.empty(), "--config {}: --init {} has a config", choices.config_file, path);
  require(!choices.match_params, "--match-params would change --ffn, which is {} in {}", model.ffn, path);
  require_same_layers(choices, model, path);
  choices.keys.for_each([&](const auto& row, const auto& slot) {
    const bool may_differ = row.group == models::OptionGroup::gate && !has_gate(model.gate);
    const bool is_length = row.name == row_of<kConfigKeys, &DecoderConfig::seq_len>().name;
    if (!may_differ && !is_length) require_same(row, slot, model, path);
  });
  DecoderConfig config = model;
  config.gate = chosen_gate(model.gate, choices);
  require_gate(config.gate, choices.keys);
  choices.keys.put_into(config);
  if (choices.keys.of<&GateVariant::bias_init>()) config.gate.bias = layers::GateBias::learned;
  models::validate(config, models::NamesIn::command_line);
  config.gate = gate_from(config, choices, model, path);
  config.seq_len = model.seq_len;
  return config;
}

bool repeats_config(const ModelChoices& choices, Task task, Bos bos, std::int64_t ids, const DecoderConfig& config) {
  try {
    return make_config(choices, task, bos, ids) == config;
  } catch (const Error&) {
    return false;  // sizes that were derived may contradict sizes that were given
  }
}

void require_options_of(const ModelChoices& choices, const DecoderConfig& model, const std::string& path) {
  choices.keys.for_each([&](const auto& row, const auto& slot) { require_same(row, slot, model, path); });
  require_same_layers(choices, model, path);
  DecoderConfig chosen = model;
  chosen.gate = chosen_gate(model.gate, choices);
  require_gate(chosen.gate, choices.keys);
  choices.keys.put_into(chosen);
  if (choices.keys.of<&GateVariant::bias_init>()) chosen.gate.bias = layers::GateBias::learned;
  require(gate_name(chosen.gate) == gate_name(model.gate), "--gate {}: {} has the gate {}", gate_name(chosen.gate),
          path, gate_name(model.gate));
  require(choices.config_file.empty(), "--config {}: {} has another config", choices.config_file, path);
  require(!choices.match_params, "--match-params: its --ffn is not that of {}; omit the option on --resume", path);
}

std::int64_t sequence_length_from(const ModelChoices& choices, Task task, const DecoderConfig& model,
                                  const std::string& path) {
  const auto& chosen = choices.keys.of<&DecoderConfig::seq_len>();
  require(chosen.value_or(1) <= model.seq_len, "{} {}: {} has {} positions", option_of<&DecoderConfig::seq_len>(),
          chosen.value_or(0), path, model.seq_len);
  return chosen.value_or(std::min(task_model(task).seq_len, model.seq_len));
}

namespace {

void require_whole_warmup(const Schedule& schedule) {
  require(schedule.warmup <= schedule.steps, "{} {} is more than {} {}", option_of<&Schedule::warmup>(),
          schedule.warmup, option_of<&Schedule::steps>(), schedule.steps);
}

}  // namespace

TrainSettings make_settings(const RunChoices& choices, std::int64_t seq_len) {
  TrainSettings settings = task_settings(choices.of<&TrainSettings::task>().value_or(Task::text));
  choices.put_into(settings);
  settings.seq_len = seq_len;
  require(settings.task == Task::text || choices.of<&TrainSettings::bos>().value_or(Bos::on) == Bos::on,
          "{} off: sequences of {} {} begin with that token", option_of<&TrainSettings::bos>(),
          option_of<&TrainSettings::task>(), word_of(settings.task));
  require(settings.task == Task::text || settings.tokenizer.empty(),
          "{} {}: sequences of {} {} are drawn from bytes, not from a tokenizer's ids",
          option_of<&TrainSettings::tokenizer>(), settings.tokenizer, option_of<&TrainSettings::task>(),
          word_of(settings.task));
  require_whole_sequence(choices, settings);
  settings.eval_tokens = std::max(settings.eval_tokens, seq_len);
  Schedule& schedule = settings.schedule;
  if (!choices.of<&Schedule::warmup>()) schedule.warmup = default_warmup(schedule.steps);
  require_whole_warmup(schedule);
  validate(settings);
  return settings;
}

TrainSettings resumed_settings(const RunChoices& choices, const TrainSettings& run) {
  TrainSettings now = run;
  choices.for_each([&](const auto& row, const auto& slot) {
    if (!choices.is_given(slot)) return;
    const auto& value = choices.value(slot);
    if constexpr (!kIsList<std::remove_cvref_t<decltype(value)>>) {
      const std::string old = option_value_text(row.of(run)), given = option_value_text(value);
      const bool fits = row.on_resume == OnResume::may_change || value == row.of(run);
      require(fits || !old.empty(), "{} {}: the run was started without it; omit it on --resume", row.option, given);
      require(fits, "{} {} is not the run's {}, and cannot change on --resume", row.option, given, old);
    }
    row.of(now) = value;
  });
  require_whole_sequence(choices, now);
  require_whole_warmup(now.schedule);
  validate(now);
  return now;
}

}  // namespace headgate::train
