// SPDX-License-Identifier: Apache-2.0
#include "models/families/config_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "library/core/check.hpp"
#include "models/decoder/config_keys.hpp"
#include "models/families/family.hpp"
#include "models/io/input_file.hpp"

namespace headgate::models {
namespace {

using io::fail;
using io::Json;
using io::printable;

constexpr int kMaxDepth = 8;

// Keys that change what a family computes, each with the values that this decoder supports. A family that supports
// other values takes the key out (take()) before this check.
struct FixedKey {
  const char* key;
  std::vector<Json> values;
};
const std::array<FixedKey, 8>& fixed_keys() {
  static const std::array<FixedKey, 8> keys{{{"hidden_act", {"silu", "swish"}},
                                             {"attention_bias", {false}},
                                             {"mlp_bias", {false}},
                                             {"use_sliding_window", {false}},
                                             {"use_mrope", {false}},
                                             {"is_causal", {true}},
                                             {"is_encoder_decoder", {false}},
                                             {"add_cross_attention", {false}}}};
  return keys;
}

// Keys that do not change what a family computes, so that any value is accepted.
constexpr std::array kIgnored{
    // keys about the file and about the programs that write and load it
    "architectures", "model_type", "_name_or_path", "name_or_path", "torch_dtype", "dtype", "transformers_version",
    "auto_map", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "experts_implementation",
    "_experts_implementation", "unsloth_fixed", "unsloth_version", "is_llama_config", "transformers.js_config",
    "pretraining_tp", "torchscript", "use_bfloat16", "tokenizer_class", "prefix",
    // keys that select what a call of the model returns
    "use_cache", "output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "is_decoder",
    "chunk_size_feed_forward",
    // keys of classification heads
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    // dropout, which acts in training only and which `headgate train` does not support
    "attention_dropout",
    // keys about special tokens and generation
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "max_sequence_length",
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens",
    // sliding windows, for families that do not use them
    "max_window_layers", "sliding_window"};

/// Formats a value for messages: its JSON, or the name of its type if it is a long list or object.
std::string shown(const Json& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return printable(value.is_structured() && text.size() > kMost ? std::string(value.type_name()) : text);
}

/// Throws Error if `value` is outside the range that kConfigKeys gives for `key`. Messages call the value `name`.
void require_in_row(std::string_view key, const std::string& name, double value) {
  for_each_row(kConfigKeys, [&](const auto& row) {
    if constexpr (std::is_same_v<ValueOf<std::remove_cvref_t<decltype(row)>>, double>) {
      if (row.key == key) require_in(row.range, name, value);
    }
  });
}

}  // namespace

ConfigReader::ConfigReader(const std::string& path, std::string_view text)
    : path_(path), root_(io::parse_json(path, text, kMaxDepth)) {
  if (!root_.is_object()) fail(path_, "not a JSON object");
  enter_text_config();
}

/// Replaces the config by its text_config, which models that also read images have. Copies three keys from the outer
/// object if text_config lacks them: model_type, tie_word_embeddings and quantization_config.
void ConfigReader::enter_text_config() {
  const auto text = root_.find("text_config");
  if (text == root_.end()) return;
  if (!text->is_object()) fail(path_, "text_config is {}, not an object", shown(*text));
  Json inner = *text;
  for (const char* key : {"model_type", "tie_word_embeddings", "quantization_config"}) {
    const auto outer = root_.find(key);
    if (outer != root_.end() && !inner.contains(key)) inner[key] = *outer;
  }
  root_ = std::move(inner);
}

Json ConfigReader::take(std::string_view key) {
  const auto found = root_.find(key);
  if (found == root_.end()) return nullptr;
  Json value = *found;
  root_.erase(found);
  return value;
}

const Json* ConfigReader::find(std::string_view key) {
  known_.emplace_back(key);
  const auto found = root_.find(key);
  return found == root_.end() ? nullptr : &*found;
}

const Json& ConfigReader::get(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) fail(path_, "{} is missing", key);
  return *value;
}

void ConfigReader::read(std::int64_t& out, std::string_view key, const Json& value) const {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost) {
    fail(path_, "{} is {}, not a whole number from 0 to 2^62", key, shown(value));
  }
  out = value.get<std::int64_t>();
}

void ConfigReader::read(double& out, std::string_view key, const Json& value) const {
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    fail(path_, "{} is {}, not a finite number", key, shown(value));
  }
  out = value.get<double>();
}

void ConfigReader::read(bool& out, std::string_view key, const Json& value) const {
  if (!value.is_boolean()) fail(path_, "{} is {}, neither true nor false", key, shown(value));
  out = value.get<bool>();
}

void ConfigReader::read(Embeddings& out, std::string_view key, const Json& value) const {
  bool tied = false;
  read(tied, key, value);
  out = tied ? Embeddings::tied : Embeddings::separate;
}

void ConfigReader::read(Switch& out, std::string_view key, const Json& value) const {
  bool on = false;
  read(on, key, value);
  out = on ? Switch::on : Switch::off;
}

void ConfigReader::require_list(std::string_view key, const Json& value) const {
  if (!value.is_array()) fail(path_, "{} is {}, not a list", key, shown(value));
  if (value.size() > static_cast<std::size_t>(kMaxLayers)) {
    fail(path_, "{} has {} elements, more than {}", key, value.size(), kMaxLayers);
  }
}

std::string ConfigReader::string(std::string_view key, const Json& value) const {
  if (!value.is_string()) fail(path_, "{} is {}, not a string", key, shown(value));
  return printable(value.get_ref<const std::string&>());
}

void ConfigReader::put_missing(std::string_view defaults) {
  const Json values = Json::parse(defaults);
  for (const auto& item : values.items()) {
    if (!root_.contains(item.key())) put(item.key(), item.value());
  }
}

void ConfigReader::put_default(std::string_view key, const Json& value) {
  const auto found = root_.find(key);
  if (found == root_.end() || found->is_null()) put(key, value);
}

void ConfigReader::put(std::string_view key, const Json& value) {
  const bool natural = value.is_number_integer() && value.get<std::int64_t>() >= 0;
  root_[std::string(key)] = natural ? Json(value.get<std::uint64_t>()) : value;
}

void ConfigReader::require_one_of(std::string_view key, const std::vector<Json>& values) {
  const Json* found = find(key);
  if (found == nullptr || found->is_null() || std::find(values.begin(), values.end(), *found) != values.end()) return;
  std::string supported;
  for (const Json& value : values) supported += (supported.empty() ? "" : " or ") + value.dump();
  fail(path_, "{} is {}; only {} is supported", key, shown(*found), supported);
}

void ConfigReader::finish() {
  for (const FixedKey& fixed : fixed_keys()) require_one_of(fixed.key, fixed.values);
  for (const char* key : kIgnored) ignore(key);
  for (const auto& item : root_.items()) {
    const bool asks = !item.value().is_null();
    if (asks && std::find(known_.begin(), known_.end(), item.key()) == known_.end()) {
      fail(path_, "unknown key '{}'", printable(item.key()));
    }
  }
}

// --- RoPE --------------------------------------------------------------------------------------------------------

void ConfigReader::unfold_rope(RopeObject layout) {
  const Json newer = take("rope_parameters"), older = take("rope_scaling");
  for (const auto& [object, parameters] : {std::pair{"rope_parameters", &newer}, std::pair{"rope_scaling", &older}}) {
    if (!parameters->is_null() && !parameters->is_object()) {
      fail(path_, "{} is {}, not an object", object, shown(*parameters));
    }
  }
  const bool scales = !older.empty();
  if (scales && !newer.empty() && newer != older) fail(path_, "rope_parameters and rope_scaling differ");
  has_rope_object_ = scales || !newer.is_null();
  if (scales) {
    if (layout == RopeObject::by_layer_type) {
      // transformers applies rope_scaling only to layers with full attention if RoPE parameters are given by layer
      // type. It then ignores "type", the older name of rope_type.
      if (!older.contains("rope_type")) fail(path_, "rope_scaling has no rope_type");
      if (older.contains("rope_theta")) fail(path_, "rope_scaling has rope_theta, which stands beside it");
    }
    take_rope("rope_scaling", older);
  } else if (!newer.empty() && layout == RopeObject::flat) {
    take_rope("rope_parameters", newer);
  } else if (!newer.empty()) {
    take_rope_of_types("rope_parameters", newer);
  }
}

/// Reads the RoPE parameters of each layer type from an object of its own. Throws if sliding_attention has a scaled
/// RoPE.
void ConfigReader::take_rope_of_types(const std::string& object, const Json& parameters) {
  for (const auto& item : parameters.items()) {
    const std::string name = fmt::format("{}.{}", object, printable(item.key()));
    if (item.key() != "full_attention" && item.key() != "sliding_attention") {
      fail(path_, "{} is neither full_attention nor sliding_attention, which this model_type has", name);
    }
    if (item.value().is_null()) continue;
    if (!item.value().is_object()) fail(path_, "{} is {}, not an object", name, shown(item.value()));
    if (!item.value().contains("rope_theta")) fail(path_, "{} has no rope_theta", name);
    rope_types_.push_back(item.key());
    if (item.key() == "full_attention") {
      take_rope(name, item.value());
      // transformers reads `truncate` only at the top level of config.json. It ignores the key here and uses the
      // default, true.
      const auto truncate = root_.find("rope_truncate");
      if (truncate == root_.end() || *truncate != false) continue;
      fail(path_, "{}.truncate is {}; only true is supported", name, shown(item.value()["truncate"]));
    }
    for (const auto& of_sliding : item.value().items()) {
      const std::string& key = of_sliding.key();
      if (key == "rope_theta" || key == "partial_rotary_factor") {
        set_once("sliding_" + key, of_sliding.value());
      } else if (key != "rope_type" || of_sliding.value() != "default") {
        fail(path_, "{}.{} is {}; only rope_type \"default\" is supported", name, printable(key),
             shown(of_sliding.value()));
      }
    }
  }
}

/// Returns the type of RoPE scaling, "default" without scaling. Stores any other type under the key rope_scaling_type.
std::string ConfigReader::take_rope_type(const std::string& object, const Json& parameters) {
  constexpr std::array kTypes{"default", "linear", "llama3", "yarn"};
  const char* key = parameters.contains("rope_type") ? "rope_type" : "type";
  const Json type = parameters.value(key, Json("default"));
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    fail(path_, "{}.{} is {}; only \"default\", \"linear\", \"llama3\" and \"yarn\" are supported", object, key,
         shown(type));
  }
  if (type != "default") set_once("rope_scaling_type", type);
  return type.get<std::string>();
}

void ConfigReader::take_rope(const std::string& object, const Json& parameters) {
  struct Known {
    std::string_view key, types;
  };
  constexpr std::array<Known, 10> kKnown{{
      {"factor", "linear llama3 yarn"},
      {"original_max_position_embeddings", "llama3 yarn"},
      {"low_freq_factor", "llama3"},
      {"high_freq_factor", "llama3"},
      {"beta_slow", "yarn"},
      {"beta_fast", "yarn"},
      {"truncate", "yarn"},
      {"attention_factor", "yarn"},
      {"mscale", "yarn"},
      {"mscale_all_dim", "yarn"},
  }};
  const std::string type = take_rope_type(object, parameters);
  for (const auto& item : parameters.items()) {
    const std::string& key = item.key();
    if (key == "rope_type" || key == "type") continue;
    if (key == "rope_theta" || key == "partial_rotary_factor" || key.starts_with("mrope_")) {
      set_once(key, item.value());
      continue;
    }
    const auto known = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& row) { return row.key == key; });
    if (known != kKnown.end() && known->types.find(type) != std::string_view::npos) continue;
    fail(path_, "{} has an unknown key '{}' for rope_type {}", object, printable(key), type);
  }
  if (type != "default") complete_scaling(object, parameters, type);
}

/// Copies the number parameters[from] to this library's key `to`. Throws if `parameters` lacks `from`.
void ConfigReader::take_scaling_number(const std::string& object, const Json& parameters, const char* from,
                                       const char* to) {
  if (!parameters.contains(from)) {
    fail(path_, "{} has no {}, which rope_type {} needs", object, from, string("type", root_["rope_scaling_type"]));
  }
  const std::string name = fmt::format("{}.{}", object, from);
  double value = 0.0;
  read(value, name, parameters[from]);
  require_in_row(to, name, value);
  set_once(to, value);
}

/// Sets the keys that this type of RoPE scaling needs. Parameters missing in the file get the defaults of transformers.
void ConfigReader::complete_scaling(const std::string& object, const Json& parameters, const std::string& type) {
  const auto number = [&](const char* from, const char* to) { take_scaling_number(object, parameters, from, to); };
  const auto lacks = [&](const char* key) { return !parameters.contains(key) || parameters[key].is_null(); };
  if (type == "linear") return number("factor", "rope_scaling_factor");
  std::int64_t longest = 0, original = 0;
  read(longest, "max_position_embeddings", get("max_position_embeddings"));
  original = longest;
  if (const auto given = parameters.find("original_max_position_embeddings"); given != parameters.end()) {
    read(original, object + ".original_max_position_embeddings", *given);
  }
  require_in(row_of<kConfigKeys, &DecoderConfig::rope_original_seq_len>().range,
             object + ".original_max_position_embeddings", original);
  set_once("rope_original_seq_len", static_cast<std::uint64_t>(original));
  const auto ordered = [&](const char* low, const char* high) {
    const double least = root_["rope_low_freq_factor"].get<double>(),
                 most = root_["rope_high_freq_factor"].get<double>();
    require(least < most, "{}: {} {} is not below {} {}", object, low, least, high, most);
  };
  if (type == "llama3") {
    number("factor", "rope_scaling_factor");
    number("low_freq_factor", "rope_low_freq_factor");
    number("high_freq_factor", "rope_high_freq_factor");
    return ordered("low_freq_factor", "high_freq_factor");
  }
  if (parameters.contains("factor") && parameters["factor"].is_null()) {
    const double factor = static_cast<double>(longest) / static_cast<double>(std::max<std::int64_t>(original, 1));
    require_in_row("rope_scaling_factor",
                   object + ".factor, max_position_embeddings / original_max_position_embeddings,", factor);
    set_once("rope_scaling_factor", factor);
  } else {
    number("factor", "rope_scaling_factor");
  }
  constexpr double kFast = 32.0, kSlow = 1.0;
  const auto turns = [&](const char* from, const char* to, double otherwise) {
    if (lacks(from) || parameters[from] == 0) return set_once(to, otherwise);
    number(from, to);
  };
  turns("beta_fast", "rope_high_freq_factor", kFast);
  turns("beta_slow", "rope_low_freq_factor", kSlow);
  ordered("beta_slow", "beta_fast");
  bool truncate = !parameters.contains("truncate");
  if (!lacks("truncate")) read(truncate, object + ".truncate", parameters["truncate"]);
  set_once("rope_truncate", truncate);
  complete_attention_factor(object, parameters);
}

/// Sets rope_attention_factor, by which YaRN multiplies the rotated features. Takes it from attention_factor, or from
/// mscale and mscale_all_dim together. If the file has neither, leaves it unset, and the decoder derives the factor
/// from YaRN's `factor`.
void ConfigReader::complete_attention_factor(const std::string& object, const Json& parameters) {
  const auto number = [&](const char* key) {
    double out = 0.0;
    const auto found = parameters.find(key);
    if (found != parameters.end() && !found->is_null()) read(out, fmt::format("{}.{}", object, key), *found);
    return out;
  };
  const auto given = parameters.find("attention_factor");
  double factor = number("attention_factor");
  if (given != parameters.end() && !given->is_null() && !(factor > 0.0)) {
    fail(path_, "{}.attention_factor is {} but must be above 0", object, shown(*given));
  }
  const double scale = number("mscale"), all_dims = number("mscale_all_dim");
  if (factor == 0.0 && scale != 0.0 && all_dims != 0.0) {
    const double stretch = 0.1 * std::log(root_["rope_scaling_factor"].get<double>());
    factor = (stretch * scale + 1.0) / (stretch * all_dims + 1.0);
    require_in_row("rope_attention_factor", object + ".mscale: the factor of attention", factor);
  }
  if (factor > 0.0) set_once("rope_attention_factor", factor);
}

void ConfigReader::set_once(const std::string& key, const Json& value) {
  const auto there = root_.find(key);
  if (there != root_.end() && *there != value) fail(path_, "{} has two values", key);
  root_[key] = value;
}

}  // namespace headgate::models
