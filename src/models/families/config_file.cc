// SPDX-License-Identifier: Apache-2.0
#include "models/families/config_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "headgate/error.hpp"
#include "models/decoder/config_keys.hpp"
#include "models/families/config_reader.hpp"
#include "models/families/modeling_code.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/io/staged_file.hpp"

namespace headgate::models {
namespace {

using io::fail;
using io::Json;

constexpr std::size_t kMaxFile = std::size_t{1} << 20;
constexpr std::string_view kRopeShare = row_of<kConfigKeys, &DecoderConfig::rope_fraction>().key;

// Describes a key without a field in DecoderConfig that is always written, because other programs expect it. `value` is
// written unless write_as() later sets another value, as for torch_dtype. The key stands directly before the key
// `in_front_of` of kConfigKeys.
struct Constant {
  const char* key;
  Json value;
  std::string_view in_front_of;
};
const std::array<Constant, 2>& written_constants() {
  static const std::array<Constant, 2> constants{
      {{"hidden_act", "silu", "rms_norm_eps"}, {"torch_dtype", "float32", "norm_kind"}}};
  return constants;
}

DecoderConfig read_rows(ConfigReader& in) {
  DecoderConfig config;
  for_each_row(kConfigKeys, [&](const auto& row) {
    const Json* value = row.presence == Presence::required ? &in.get(row.key) : in.find(row.key);
    const bool absent = value == nullptr || (value->is_null() && row.presence != Presence::required);
    if (!absent) in.read(row.of(config), row.key, *value);
  });
  return config;
}

const Family& family_of(ConfigReader& in) {
  const std::string type = in.string("model_type", in.get("model_type"));
  for (const Family* family : families()) {
    if (family->name == type || (!type.empty() && family->outer_name == type)) return *family;
  }
  fail(in.path(),
       "model_type is '{}', not one of {}; `python -m headgate xray MODEL --text FILE` loads others by transformers, "
       "with --tokens, --name, --out and --json-out alone",
       type, family_names());
}

DecoderConfig without_rope_scaling(DecoderConfig config) {
  const DecoderConfig defaults;
  config.rope_scaling = defaults.rope_scaling;
  config.rope_factor = defaults.rope_factor;
  config.rope_low_freq_factor = defaults.rope_low_freq_factor;
  config.rope_high_freq_factor = defaults.rope_high_freq_factor;
  config.rope_original_seq_len = defaults.rope_original_seq_len;
  config.rope_truncate = defaults.rope_truncate;
  config.rope_attention_factor = defaults.rope_attention_factor;
  return config;
}

/// Refuses keys in a public family's config.json that only files with model_type headgate may have. Throws if such a
/// key has a value, and removes the key if its value is null. Accepts keys that all families have, and
/// Family::shared_keys.
void refuse_own_keys(ConfigReader& in, const Family& family) {
  for_each_row(kConfigKeys, [&](const auto& row) {
    const bool common = row.presence == Presence::required || row.presence == Presence::always;
    const bool shared =
        std::find(family.shared_keys.begin(), family.shared_keys.end(), row.key) != family.shared_keys.end();
    // partial_rotary_factor is a special case. With RopeObject::flat, it is accepted here, and refuse_rope_share()
    // checks it later. With RopeObject::by_layer_type, it is valid only inside rope_parameters and refused here.
    const bool known = row.key == kRopeShare ? family.rope == RopeObject::flat : common || shared;
    if (known || in.take(row.key).is_null()) return;
    fail(in.path(), "{} is not a key of model_type {}; model_type {} has it", row.key, family.name, kHeadgate.name);
  });
}

/// Refuses partial rotation of heads (a partial_rotary_factor other than 1) for families that do not support it.
void refuse_rope_share(ConfigReader& in, const Family& family) {
  const auto& shared = family.shared_keys;
  if (std::find(shared.begin(), shared.end(), kRopeShare) != shared.end()) return;
  for (const std::string_view key : {kRopeShare, std::string_view("sliding_partial_rotary_factor")}) {
    const Json share = in.take(key);
    if (share.is_null() || share == 1.0) continue;
    fail(in.path(), "{} is {}; model_type {} rotates whole heads, so only 1 is supported", key, share.dump(),
         family.name);
  }
}

/// Refuses configs that rotate an odd number of features per head; transformers would rotate one more feature.
void refuse_odd_rotation(const DecoderConfig& config, const std::string& path) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerConfig c = layer_config(config, layer);
    const auto features = static_cast<std::int64_t>(c.rope_fraction * static_cast<double>(config.head_dim));
    if (c.type == LayerType::linear_attention || features % 2 == 0) continue;
    fail(path, "{} {} of {} {} leaves {} features to rotate; only an even number is supported", kRopeShare,
         c.rope_fraction, row_of<kConfigKeys, &DecoderConfig::head_dim>().key, config.head_dim, features);
  }
}

/// Reads a config.json of the given family.
FileConfig read_as(ConfigReader& in, const Family& family) {
  FileConfig out;
  out.family = &family;
  const bool foreign = &family != &kHeadgate;
  if (foreign) refuse_own_keys(in, family);
  in.put_missing(family.defaults);
  in.unfold_rope(family.rope);
  if (foreign) refuse_rope_share(in, family);
  if (foreign && !in.has("rope_theta")) in.put("rope_theta", family.rope_base);
  if (family.complete != nullptr) family.complete(in);
  out.config = read_rows(in);
  family.finish(in, out);
  in.finish();
  validate(out.config, NamesIn::file);
  out.config = canonical_config(out.config);
  if (foreign) refuse_odd_rotation(out.config, in.path());
  return out;
}

/// Returns whether the Python code that is written beside a model supports `config`, which must have no experts.
bool modeling_code_computes(const DecoderConfig& config) { return config.experts == DecoderConfig{}.experts; }

/// Returns whether config.json of `family` contains keys with this `presence`, which says when a key is written.
/// `at_default` says whether the key's field in `config` has its default value.
bool is_written(Presence presence, const DecoderConfig& config, const Family& family, bool at_default) {
  switch (presence) {
    case Presence::required:
    case Presence::always: break;
    case Presence::headgate_always: return &family == &kHeadgate;
    case Presence::headgate_if_changed: return !at_default && &family == &kHeadgate;
    case Presence::if_changed: return !at_default && (&family == &kHeadgate || &family == &kQwen35);
    case Presence::with_gate: return config.gate != layers::GateVariant{} && &family != &kQwen35;
  }
  return true;
}

template <typename Value>
Json json_of(const Value& value) {
  if constexpr (std::is_same_v<Value, Embeddings>) {
    return value == Embeddings::tied;
  } else if constexpr (std::is_same_v<Value, Switch>) {
    return value == Switch::on;
  } else if constexpr (kIsList<Value>) {
    Json list = Json::array();
    for (const auto& element : value) list.push_back(json_of(element));
    return list;
  } else if constexpr (std::is_enum_v<Value>) {
    return word_of(value);
  } else {
    return value;
  }
}

/// Writes keys of public families that are not in kConfigKeys, such as sliding_window and rope_scaling.
void write_features(nlohmann::ordered_json& out, const DecoderConfig& config, const Family& family) {
  if (&family == &kMistral) out["sliding_window"] = config.window;
  // Always writes partial_rotary_factor, because its default in Qwen3.5 differs from the default in this library.
  if (&family == &kQwen35) out["partial_rotary_factor"] = config.rope_fraction;
  if (&family == &kHeadgate || config.rope_scaling == layers::RopeScalingKind::none) return;
  nlohmann::ordered_json scaling{{"rope_type", word_of(config.rope_scaling)}, {"factor", config.rope_factor}};
  if (config.rope_scaling == layers::RopeScalingKind::llama3) {
    scaling["low_freq_factor"] = config.rope_low_freq_factor;
    scaling["high_freq_factor"] = config.rope_high_freq_factor;
    scaling["original_max_position_embeddings"] = config.rope_original_seq_len;
  }
  if (config.rope_scaling == layers::RopeScalingKind::yarn) {
    scaling["beta_slow"] = config.rope_low_freq_factor;
    scaling["beta_fast"] = config.rope_high_freq_factor;
    scaling["original_max_position_embeddings"] = config.rope_original_seq_len;
    scaling["truncate"] = config.rope_truncate == Switch::on;
    if (config.rope_attention_factor > 0.0) scaling["attention_factor"] = config.rope_attention_factor;
  }
  out["rope_scaling"] = scaling;
}

std::string write_as(const DecoderConfig& config, GateLayout layout, const Family& family, DType dtype,
                     std::optional<std::int64_t> bos = std::nullopt, const Json& end_ids = nullptr) {
  const DecoderConfig defaults;
  nlohmann::ordered_json out;
  out["architectures"] = {family.model_class};
  out["model_type"] = family.name;
  for_each_row(kConfigKeys, [&](const auto& row) {
    if (row.key == row_of<kConfigKeys, &DecoderConfig::init_std>().key) {
      out["attention_bias"] = &family != &kHeadgate && config.out_bias == Switch::on;
    }
    for (const Constant& constant : written_constants()) {
      if (constant.in_front_of == row.key) out[constant.key] = constant.value;
    }
    const bool at_default = row.of(config) == row.of(defaults);
    if (is_written(row.presence, config, family, at_default)) out[std::string(row.key)] = json_of(row.of(config));
  });
  if (&family == &kHeadgate && modeling_code_computes(config)) {
    out["auto_map"] = {{"AutoConfig", fmt::format("{}.HeadgateConfig", kModelingModule)},
                       {"AutoModelForCausalLM", fmt::format("{}.{}", kModelingModule, family.model_class)}};
  }
  out["torch_dtype"] = dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
  if (bos) out["bos_token_id"] = *bos == kNoBos ? Json() : Json(*bos);
  if (!end_ids.is_null()) out["eos_token_id"] = end_ids;
  write_features(out, config, family);
  if (layout != GateLayout::separate && &family != &kQwen35) out["gate_layout"] = word_of(layout);
  return io::json_text(out);
}

/// Returns whether Qwen3.5's text model computes the same as `config`. Writes `config` as a Qwen3.5 file, reads the
/// file and compares the results.
bool is_qwen35(const DecoderConfig& config) {
  if (!has_layer(config, LayerType::linear_attention)) return false;
  try {
    return parse_config("", write_as(config, GateLayout::per_query_head, kQwen35, DType::f32)) == config;
  } catch (const io::FileError&) {
    return false;
  }
}

/// Returns whether transformers' LlamaConfig accepts the config. LlamaConfig requires that `dim` is a multiple of
/// `heads`, and that `init_std` is at most 1.
bool is_llama_config(const DecoderConfig& c) { return c.dim % c.heads == 0 && c.init_std <= 1.0; }

}  // namespace

std::string write_config(const DecoderConfig& config) {
  return write_as(config, GateLayout::separate, is_qwen3(config) ? kQwen3 : kHeadgate, DType::f32);
}

const Family& public_family(const FileConfig& file) {
  const DecoderConfig& c = file.config;
  if (file.layout == GateLayout::per_query_head && is_qwen35(c)) return kQwen35;
  DecoderConfig plain = without_rope_scaling(c);
  plain.qk_norm = QkNorm::per_head;
  plain.qkv_bias = QkvBias::none;
  plain.out_bias = Switch::off;
  plain.window = 0;
  if (!is_qwen3(plain) || file.layout != GateLayout::separate) return kHeadgate;
  const bool q = c.qkv_bias == QkvBias::learned, o = c.out_bias == Switch::on, window = c.window > 0;
  if (c.qk_norm == QkNorm::per_head && q == o && !window) return kQwen3;
  if (c.qk_norm != QkNorm::none) return kHeadgate;
  if (q == o && !window) return is_llama_config(c) ? kLlama : kHeadgate;
  if (!q && !o && window) return kMistral;
  return q && !window ? kQwen2 : kHeadgate;
}

FileConfig public_file(const DecoderConfig& config) {
  FileConfig file{config};
  if (is_qwen35(config)) file.layout = GateLayout::per_query_head;
  file.family = &public_family(file);
  return file;
}

std::string write_public_config(const FileConfig& file, DType dtype) {
  return write_as(file.config, file.layout, public_family(file), dtype, file.bos, file.end_ids);
}

void write_config_files(const std::string& directory, const std::string& text) {
  io::write_text(directory + "/config.json", text);
  const FileConfig file = parse_file_config(directory, text);
  const bool own = file.family == &kHeadgate && modeling_code_computes(file.config);
  if (own) io::write_text(fmt::format("{}/{}", directory, kModelingFile), modeling_code());
}

FileConfig parse_file_config(const std::string& path, std::string_view text) {
  ConfigReader in(path, text);
  const Family& family = family_of(in);
  try {
    return read_as(in, family);
  } catch (const Error& error) {
    fail(path, "{}", error.what());
  }
}

DecoderConfig parse_config(const std::string& path, std::string_view text) {
  return parse_file_config(path, text).config;
}

FileConfig read_file_config(const std::string& path) { return parse_file_config(path, io::read_text(path, kMaxFile)); }

DecoderConfig read_config(const std::string& path) { return read_file_config(path).config; }

}  // namespace headgate::models
