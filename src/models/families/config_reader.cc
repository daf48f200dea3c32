// SPDX-License-Identifier: Apache-2.0
#include "models/families/config_reader.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/decoder/config_keys.hpp"
#include "models/io/input_file.hpp"

namespace headgate::models {
namespace {

using io::fail;
using io::Json;
using io::printable;

constexpr int kMaxDepth = 8;

// Keys that change what a family computes, each with the one value that this decoder supports.
struct FixedKey {
  const char* key;
  Json value;
};
const std::array<FixedKey, 5>& fixed_keys() {
  static const std::array<FixedKey, 5> keys{{{"hidden_act", "silu"},
                                             {"attention_bias", false},
                                             {"mlp_bias", false},
                                             {"attention_dropout", 0.0},
                                             {"use_sliding_window", false}}};
  return keys;
}

// Keys that do not change what a family computes, so that any value is accepted.
constexpr std::array<const char*, 21> kIgnored{{"architectures",
                                                "model_type",
                                                "_name_or_path",
                                                "name_or_path",
                                                "torch_dtype",
                                                "dtype",
                                                "transformers_version",
                                                "use_cache",
                                                "bos_token_id",
                                                "eos_token_id",
                                                "pad_token_id",
                                                "max_window_layers",
                                                "sliding_window",
                                                "output_attentions",
                                                "auto_map",
                                                "_attn_implementation_autoset",
                                                "pretraining_tp",
                                                "unsloth_fixed",
                                                "is_llama_config",
                                                "transformers.js_config",
                                                "max_sequence_length"}};

std::string shown(const Json& value) {
  return printable(value.is_structured() ? std::string(value.type_name())
                                         : value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

}  // namespace

ConfigReader::ConfigReader(const std::string& path, std::string_view text)
    : path_(path), root_(io::parse_json(path, text, kMaxDepth)) {
  if (!root_.is_object()) fail(path_, "not a JSON object");
  enter_text_config();
  unfold_rope();
}

/// Continues with the text part of a model that also reads images. Its file says there what it does not say inside.
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
    fail(path_, "{} is {}, not a whole number from 1 on", key, shown(value));
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

void ConfigReader::put_default(std::string_view key, const Json& value) {
  const auto found = root_.find(key);
  if (found == root_.end() || found->is_null()) put(key, value);
}

void ConfigReader::put(std::string_view key, const Json& value) {
  const bool natural = value.is_number_integer() && value.get<std::int64_t>() >= 0;
  root_[std::string(key)] = natural ? Json(value.get<std::uint64_t>()) : value;
}

void ConfigReader::require_value(std::string_view key, const Json& value) {
  const Json* found = find(key);
  if (found != nullptr && !found->is_null() && *found != value) {
    fail(path_, "{} is {}; only {} is supported", key, shown(*found), value.dump());
  }
}

void ConfigReader::finish() {
  for (const FixedKey& fixed : fixed_keys()) require_value(fixed.key, fixed.value);
  for (const char* key : kIgnored) ignore(key);
  for (const auto& item : root_.items()) {
    const bool asks = !item.value().is_null();
    if (asks && std::find(known_.begin(), known_.end(), item.key()) == known_.end()) {
      fail(path_, "unknown key '{}'", printable(item.key()));
    }
  }
}

/// Moves what newer files have in rope_parameters, and older ones in rope_scaling, to where this library's files have
/// it.
void ConfigReader::unfold_rope() {
  for (const char* object : {"rope_parameters", "rope_scaling"}) {
    const auto found = root_.find(object);
    if (found == root_.end()) continue;
    const Json parameters = *found;
    root_.erase(found);
    if (parameters.is_null()) continue;
    has_rope_object_ = true;
    if (!parameters.is_object()) fail(path_, "{} is {}, not an object", object, shown(parameters));
    if (parameters.contains("full_attention") || parameters.contains("sliding_attention")) {
      take_rope_of_types(parameters, object);
      continue;
    }
    const bool scaled = take_rope_type(parameters);
    for (const auto& item : parameters.items()) take_rope_key(item.key(), item.value(), scaled);
    const bool newer = std::string_view(object) == "rope_parameters";
    if (newer && root_.find("rope_theta") == root_.end()) fail(path_, "{} has no rope_theta", object);
  }
}

/// Does so where layers of full and of sliding attention have RoPE of their own.
void ConfigReader::take_rope_of_types(const Json& parameters, const char* object) {
  for (const auto& item : parameters.items()) {
    const std::string shown_key = printable(item.key());
    if (item.value().is_null()) continue;
    if (!item.value().is_object()) fail(path_, "{}: {} is {}, not an object", object, shown_key, shown(item.value()));
    if (item.key() == "full_attention") {
      const bool scaled = take_rope_type(item.value());
      for (const auto& of_full : item.value().items()) take_rope_key(of_full.key(), of_full.value(), scaled);
      continue;
    }
    if (item.key() != "sliding_attention") fail(path_, "{} has an unknown key '{}'", object, shown_key);
    for (const auto& of_sliding : item.value().items()) {
      const std::string& key = of_sliding.key();
      if (key == "rope_theta" || key == "partial_rotary_factor") {
        set_once("sliding_" + key, of_sliding.value());
      } else if (key != "rope_type" || of_sliding.value() != "default") {
        fail(path_, "{}: sliding_attention has {} {}", object, printable(key), shown(of_sliding.value()));
      }
    }
  }
}

/// Returns whether angles are scaled.
bool ConfigReader::take_rope_type(const Json& parameters) {
  for (const char* key : {"rope_type", "type"}) {
    const auto found = parameters.find(key);
    if (found == parameters.end() || *found == "default") continue;
    if (*found != "linear" && *found != "llama3" && *found != "yarn") {
      fail(path_, "{} is {}; only \"default\", \"linear\", \"llama3\" and \"yarn\" are supported", key, shown(*found));
    }
    set_once("rope_scaling_type", *found);
    if (*found == "yarn") complete_yarn(parameters);
    return true;
  }
  return false;
}

/// Sets the bounds of yarn that a file leaves out, which are others than llama3's.
void ConfigReader::complete_yarn(const Json& parameters) {
  constexpr double kFast = 32.0, kSlow = 1.0;
  const auto lacks = [&](const char* key) { return !parameters.contains(key) || parameters[key].is_null(); };
  if (lacks("original_max_position_embeddings")) {
    fail(path_, "RoPE's parameters have no original_max_position_embeddings, which yarn needs");
  }
  if (lacks("beta_fast")) set_once("rope_high_freq_factor", kFast);
  if (lacks("beta_slow")) set_once("rope_low_freq_factor", kSlow);
}

void ConfigReader::take_rope_key(const std::string& key, const Json& value, bool scaled) {
  enum class Of { any, every_scaling, llama3, yarn };
  struct Moved {
    const char* from;
    const char* to;
    Of of;
  };
  constexpr std::array<Moved, 9> kMoved{
      {{"rope_theta", "rope_theta", Of::any},
       {"factor", "rope_scaling_factor", Of::every_scaling},
       {"original_max_position_embeddings", "rope_original_seq_len", Of::every_scaling},
       {"low_freq_factor", "rope_low_freq_factor", Of::llama3},
       {"high_freq_factor", "rope_high_freq_factor", Of::llama3},
       {"beta_slow", "rope_low_freq_factor", Of::yarn},
       {"beta_fast", "rope_high_freq_factor", Of::yarn},
       {"truncate", "rope_truncate", Of::yarn},
       {"attention_factor", "rope_attention_factor", Of::yarn}}};
  const auto type = root_.find("rope_scaling_type");
  const bool is_yarn = scaled && type != root_.end() && *type == "yarn";
  if (is_yarn && value.is_null()) return;
  if (key == "rope_type" || key == "type" || (key == "partial_rotary_factor" && value == 1.0)) return;
  if (key == "partial_rotary_factor" || key.starts_with("mrope_")) return set_once(key, value);
  for (const Moved& moved : kMoved) {
    const bool fits =
        moved.of == Of::any || (scaled && (moved.of == Of::every_scaling || (moved.of == Of::yarn) == is_yarn));
    if (key == moved.from && fits) return set_once(moved.to, value);
  }
  fail(path_, "RoPE's parameters have an unknown key '{}'", printable(key));
}

void ConfigReader::set_once(const std::string& key, const Json& value) {
  const auto there = root_.find(key);
  if (there != root_.end() && *there != value) fail(path_, "{} has two values", key);
  root_[key] = value;
}

}  // namespace headgate::models
