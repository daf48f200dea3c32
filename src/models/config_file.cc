// SPDX-License-Identifier: Apache-2.0
#include "models/config_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "headgate/error.hpp"
#include "io/input_file.hpp"
#include "io/json.hpp"

namespace headgate::models {
namespace {

using io::fail;
using io::Json;
using io::printable;

constexpr std::size_t kMaxFile = std::size_t{1} << 20;
constexpr int kMaxDepth = 4;
constexpr const char* kQwen3 = "qwen3";
constexpr const char* kHeadgate = "headgate";

// Keys that change what Qwen3 computes, with the one value under which it is this decoder.
struct FixedKey {
  const char* key;
  Json value;
};
const std::array<FixedKey, 6>& fixed_keys() {
  static const std::array<FixedKey, 6> keys{{{"hidden_act", "silu"},
                                             {"attention_bias", false},
                                             {"mlp_bias", false},
                                             {"attention_dropout", 0.0},
                                             {"use_sliding_window", false},
                                             {"rope_scaling", nullptr}}};
  return keys;
}

// What is written beside the keys of the config, for other programs, and in front of which of them.
struct Constant {
  const char* key;
  Json value;
  std::string_view in_front_of;
};
const std::array<Constant, 3>& written_constants() {
  static const std::array<Constant, 3> constants{{{"hidden_act", "silu", "rms_norm_eps"},
                                                  {"attention_bias", false, "initializer_range"},
                                                  {"torch_dtype", "float32", "norm_kind"}}};
  return constants;
}

// Keys that do not change it, whatever they hold.
constexpr std::array<const char*, 15> kIgnored{{"architectures", "model_type", "_name_or_path", "name_or_path",
                                                "torch_dtype", "dtype", "transformers_version", "use_cache",
                                                "bos_token_id", "eos_token_id", "pad_token_id", "max_window_layers",
                                                "sliding_window", "layer_types", "output_attentions"}};

/// One config.json; every key that was asked for counts as known.
class Reader {
 public:
  Reader(const std::string& path, std::string_view text) : path_(path), root_(io::parse_json(path, text, kMaxDepth)) {
    if (!root_.is_object()) fail(path_, "not a JSON object");
    unfold_rope_parameters();
  }

  const Json* find(std::string_view key) {
    known_.emplace_back(key);
    const auto found = root_.find(key);
    return found == root_.end() ? nullptr : &*found;
  }

  const Json& get(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) fail(path_, "{} is missing", key);
    return *value;
  }

  void read(std::int64_t& out, std::string_view key, const Json& value) const {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost) {
      fail(path_, "{} is {}, not a whole number from 1 on", key, shown(value));
    }
    out = value.get<std::int64_t>();
  }

  void read(double& out, std::string_view key, const Json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      fail(path_, "{} is {}, not a finite number", key, shown(value));
    }
    out = value.get<double>();
  }

  void read(Embeddings& out, std::string_view key, const Json& value) const {
    if (!value.is_boolean()) fail(path_, "{} is {}, neither true nor false", key, shown(value));
    out = value.get<bool>() ? Embeddings::tied : Embeddings::separate;
  }

  template <typename Enum>
  void read(Enum& out, std::string_view key, const Json& value) const {
    out = parse_word<Enum>(key, string(key, value));
  }

  std::string string(std::string_view key, const Json& value) const {
    if (!value.is_string()) fail(path_, "{} is {}, not a string", key, shown(value));
    return printable(value.get_ref<const std::string&>());
  }

  /// After all keys that are understood have been asked for.
  void finish() {
    for (const FixedKey& fixed : fixed_keys()) {
      const Json* value = find(fixed.key);
      if (value != nullptr && *value != fixed.value) {
        fail(path_, "{} is {}; only {} is supported", fixed.key, shown(*value), fixed.value.dump());
      }
    }
    for (const char* key : kIgnored) known_.emplace_back(key);
    check_layer_types();
    for (const auto& item : root_.items()) {
      if (std::find(known_.begin(), known_.end(), item.key()) == known_.end()) {
        fail(path_, "unknown key '{}'", printable(item.key()));
      }
    }
  }

 private:
  static std::string shown(const Json& value) {
    return printable(value.is_structured() ? std::string(value.type_name())
                                           : value.dump(-1, ' ', true, Json::error_handler_t::replace));
  }

  /// Puts rope_theta where older files have it.
  void unfold_rope_parameters() {
    const auto found = root_.find("rope_parameters");
    if (found == root_.end()) return;
    const Json parameters = *found;
    root_.erase(found);
    if (parameters.is_null()) return;
    if (!parameters.is_object()) fail(path_, "rope_parameters is {}, not an object", shown(parameters));
    for (const auto& item : parameters.items()) {
      const bool type = item.key() == "rope_type" || item.key() == "type";
      if (type && item.value() != "default") fail(path_, "{} is {}, not \"default\"", item.key(), shown(item.value()));
      if (item.key() == "rope_theta") continue;
      if (item.key() == "partial_rotary_factor" && item.value() == 1.0) continue;
      if (!type) fail(path_, "rope_parameters has an unknown key '{}'", printable(item.key()));
    }
    const auto inner = parameters.find("rope_theta");
    const auto outer = root_.find("rope_theta");
    if (inner == parameters.end() && outer == root_.end()) fail(path_, "rope_parameters has no rope_theta");
    if (inner == parameters.end()) return;
    if (outer != root_.end() && *inner != *outer) fail(path_, "rope_theta has two values");
    root_["rope_theta"] = *inner;
  }

  void check_layer_types() const {
    const auto types = root_.find("layer_types");
    if (types == root_.end() || types->is_null()) return;
    const bool full = types->is_array() && std::all_of(types->begin(), types->end(),
                                                       [](const Json& type) { return type == "full_attention"; });
    if (!full) fail(path_, "layer_types: only full_attention is supported");
  }

  const std::string& path_;
  Json root_;
  std::vector<std::string> known_;
};

DecoderConfig read_all(Reader& in) {
  DecoderConfig config;
  for_each_row(kConfigKeys, [&](const auto& row) {
    const Json* value = row.presence == Presence::required ? &in.get(row.key) : in.find(row.key);
    if (value != nullptr) in.read(row.of(config), row.key, *value);
  });
  in.finish();
  return config;
}

/// Whether a key is written of `config`; its field is at the default or not.
bool is_written(Presence presence, const DecoderConfig& config, bool at_default) {
  switch (presence) {
    case Presence::required:
    case Presence::always: break;
    case Presence::beyond_qwen3: return !is_qwen3(config);
    case Presence::not_default: return !at_default;
    case Presence::with_gate: return config.gate != layers::GateVariant{};
  }
  return true;
}

template <typename Value>
Json json_of(const Value& value) {
  if constexpr (std::is_same_v<Value, Embeddings>) {
    return value == Embeddings::tied;
  } else if constexpr (std::is_enum_v<Value>) {
    return word_of(value);
  } else {
    return value;
  }
}

}  // namespace

std::string write_config(const DecoderConfig& config) {
  const bool qwen3 = is_qwen3(config);
  const DecoderConfig defaults;
  nlohmann::ordered_json out;
  out["architectures"] = {qwen3 ? "Qwen3ForCausalLM" : "HeadgateForCausalLM"};
  out["model_type"] = qwen3 ? kQwen3 : kHeadgate;
  for_each_row(kConfigKeys, [&](const auto& row) {
    for (const Constant& constant : written_constants()) {
      if (constant.in_front_of == row.key) out[constant.key] = constant.value;
    }
    const bool at_default = row.of(config) == row.of(defaults);
    if (is_written(row.presence, config, at_default)) out[std::string(row.key)] = json_of(row.of(config));
  });
  return out.dump(2) + "\n";
}

DecoderConfig parse_config(const std::string& path, std::string_view text) {
  Reader in(path, text);
  const std::string type = in.string("model_type", in.get("model_type"));
  if (type != kQwen3 && type != kHeadgate) fail(path, "model_type is '{}', not {} or {}", type, kQwen3, kHeadgate);
  DecoderConfig config;
  try {
    config = read_all(in);
    validate(config, NamesIn::file);
  } catch (const Error& error) {
    fail(path, "{}", error.what());
  }
  if (type == kQwen3 && !is_qwen3(config)) {
    fail(path, "model_type is {}, but a gate, norm or RoPE that Qwen3 does not have is asked for: {} it would be",
         kQwen3, kHeadgate);
  }
  return config;
}

DecoderConfig read_config(const std::string& path) { return parse_config(path, io::read_text(path, kMaxFile)); }

}  // namespace headgate::models
