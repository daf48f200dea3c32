// SPDX-License-Identifier: Apache-2.0
#include "models/config_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

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

/// For messages: the fields by the keys of the file, which the path in front names.
constexpr FieldNames kKeys{.where = "",
                           .vocab = "vocab_size",
                           .dim = "hidden_size",
                           .layers = "num_hidden_layers",
                           .heads = "num_attention_heads",
                           .kv_heads = "num_key_value_heads",
                           .head_dim = "head_dim",
                           .ffn = "intermediate_size",
                           .seq_len = "max_position_embeddings",
                           .norm_eps = "rms_norm_eps",
                           .rope_base = "rope_theta",
                           .rope_fraction = "partial_rotary_factor",
                           .init_std = "initializer_range"};

struct SizeKey {
  const char* key;
  std::int64_t DecoderConfig::*member;
};
constexpr std::array<SizeKey, 8> kSizes{{{kKeys.vocab, &DecoderConfig::vocab},
                                         {kKeys.dim, &DecoderConfig::dim},
                                         {kKeys.layers, &DecoderConfig::layers},
                                         {kKeys.heads, &DecoderConfig::heads},
                                         {kKeys.kv_heads, &DecoderConfig::kv_heads},
                                         {kKeys.head_dim, &DecoderConfig::head_dim},
                                         {kKeys.ffn, &DecoderConfig::ffn},
                                         {kKeys.seq_len, &DecoderConfig::seq_len}}};

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
  }

  const Json* find(const char* key) {
    known_.emplace_back(key);
    const auto found = root_.find(key);
    return found == root_.end() ? nullptr : &*found;
  }

  const Json& get(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) fail(path_, "{} is missing", key);
    return *value;
  }

  std::int64_t size(const char* key) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
    const Json& value = get(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost) {
      fail(path_, "{} is {}, not a whole number from 1 on", key, shown(value));
    }
    return value.get<std::int64_t>();
  }

  double as_number(const char* key, const Json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      fail(path_, "{} is {}, not a finite number", key, shown(value));
    }
    return value.get<double>();
  }

  double number(const char* key, double otherwise) {
    const Json* value = find(key);
    return value == nullptr ? otherwise : as_number(key, *value);
  }

  bool boolean(const char* key) {
    const Json& value = get(key);
    if (!value.is_boolean()) fail(path_, "{} is {}, neither true nor false", key, shown(value));
    return value.get<bool>();
  }

  std::string string(const char* key, const Json& value) const {
    if (!value.is_string()) fail(path_, "{} is {}, not a string", key, shown(value));
    return printable(value.get_ref<const std::string&>());
  }

  template <typename Enum>
  void word(const char* key, Enum& out) {
    const Json* value = find(key);
    if (value != nullptr) out = parse_word<Enum>(key, string(key, *value));
  }

  double rope_base() {
    const Json* parameters = find("rope_parameters");
    const Json* theta = find("rope_theta");
    if (parameters == nullptr || parameters->is_null())
      return as_number("rope_theta", theta ? *theta : get("rope_theta"));
    if (!parameters->is_object()) fail(path_, "rope_parameters is {}, not an object", shown(*parameters));
    for (const auto& item : parameters->items()) {
      const bool type = item.key() == "rope_type" || item.key() == "type";
      if (type && item.value() != "default") fail(path_, "{} is {}, not \"default\"", item.key(), shown(item.value()));
      if (item.key() == "rope_theta") continue;
      if (item.key() == "partial_rotary_factor" && item.value() == 1.0) continue;
      if (!type) fail(path_, "rope_parameters has an unknown key '{}'", printable(item.key()));
    }
    const auto inner = parameters->find("rope_theta");
    if (inner == parameters->end() && theta == nullptr) fail(path_, "rope_parameters has no rope_theta");
    if (inner != parameters->end() && theta != nullptr && *inner != *theta) fail(path_, "rope_theta has two values");
    return as_number("rope_theta", inner == parameters->end() ? *theta : *inner);
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

void read_gate(Reader& in, layers::GateVariant& gate) {
  in.word("gate_site", gate.site);
  in.word("gate_grain", gate.grain);
  in.word("gate_source", gate.source);
  in.word("gate_fn", gate.fn);
  in.word("gate_op", gate.op);
  in.word("gate_bias", gate.bias);
  gate.bias_init = in.number("gate_bias_init", gate.bias_init);
  gate.init_std = in.number("gate_init_std", gate.init_std);
  in.word("attention_output_control", gate.output_control);
  in.word("attention_sinks", gate.sinks);
}

DecoderConfig read_all(Reader& in) {
  DecoderConfig config;
  for (const SizeKey& size : kSizes) config.*size.member = in.size(size.key);
  config.norm_eps = in.as_number(kKeys.norm_eps, in.get(kKeys.norm_eps));
  config.rope_base = in.rope_base();
  config.embeddings = in.boolean("tie_word_embeddings") ? Embeddings::tied : Embeddings::separate;
  config.init_std = in.number(kKeys.init_std, config.init_std);
  config.rope_fraction = in.number(kKeys.rope_fraction, config.rope_fraction);
  in.word("norm_kind", config.norm);
  in.word("norm_placement", config.norm_placement);
  in.word("qk_norm", config.qk_norm);
  read_gate(in, config.gate);
  in.finish();
  return config;
}

}  // namespace

bool is_qwen3(const DecoderConfig& config) {
  const layers::GateVariant& gate = config.gate;
  const bool plain_attention =
      !has_gate(gate) && gate.output_control == layers::OutputControl::none && gate.sinks == layers::SinkKind::none;
  return plain_attention && config.norm == layers::NormKind::plain && config.norm_placement == NormPlacement::pre &&
         config.qk_norm == QkNorm::per_head && rotary_dim(config) == config.head_dim;
}

std::string write_config(const DecoderConfig& config) {
  const bool qwen3 = is_qwen3(config);
  nlohmann::ordered_json out;
  out["architectures"] = {qwen3 ? "Qwen3ForCausalLM" : "HeadgateForCausalLM"};
  out["model_type"] = qwen3 ? kQwen3 : kHeadgate;
  for (const SizeKey& size : kSizes) out[size.key] = config.*size.member;
  out["hidden_act"] = "silu";
  out[kKeys.norm_eps] = config.norm_eps;
  out[kKeys.rope_base] = config.rope_base;
  out["tie_word_embeddings"] = config.embeddings == Embeddings::tied;
  out["attention_bias"] = false;
  out[kKeys.init_std] = config.init_std;
  out["torch_dtype"] = "float32";
  if (!qwen3) {
    out["norm_kind"] = word_of(config.norm);
    out["norm_placement"] = word_of(config.norm_placement);
    out["qk_norm"] = word_of(config.qk_norm);
  }
  if (config.rope_fraction != 1.0) out[kKeys.rope_fraction] = config.rope_fraction;
  const layers::GateVariant& gate = config.gate;
  if (gate != layers::GateVariant{}) {
    out["gate_site"] = word_of(gate.site);
    out["gate_grain"] = word_of(gate.grain);
    out["gate_source"] = word_of(gate.source);
    out["gate_fn"] = word_of(gate.fn);
    out["gate_op"] = word_of(gate.op);
    out["gate_bias"] = word_of(gate.bias);
    out["gate_bias_init"] = gate.bias_init;
    out["gate_init_std"] = gate.init_std;
    out["attention_output_control"] = word_of(gate.output_control);
    out["attention_sinks"] = word_of(gate.sinks);
  }
  return out.dump(2) + "\n";
}

DecoderConfig parse_config(const std::string& path, std::string_view text) {
  Reader in(path, text);
  const std::string type = in.string("model_type", in.get("model_type"));
  if (type != kQwen3 && type != kHeadgate) fail(path, "model_type is '{}', not {} or {}", type, kQwen3, kHeadgate);
  DecoderConfig config;
  try {
    config = read_all(in);
    validate(config, kKeys);
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
