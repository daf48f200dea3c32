// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>

#include "models/decoder/config_keys.hpp"
#include "models/families/family.hpp"
#include "models/families/hybrid_layers.hpp"

namespace headgate::models {
namespace {

#define HEADGATE_ADDRESS_OF_FAMILY(family) &(family),
constexpr std::array kFamilies{HEADGATE_FAMILIES(HEADGATE_ADDRESS_OF_FAMILY)};
#undef HEADGATE_ADDRESS_OF_FAMILY

std::string joined(std::string_view Family::*text) {
  std::string out;
  for (const Family* family : kFamilies) {
    if (!(family->*text).empty()) out += (out.empty() ? "" : ", ") + std::string(family->*text);
  }
  return out;
}

constexpr std::string_view kSliding = "sliding_attention";

bool lists_sliding_layers(ConfigReader& in) {
  const io::Json* types = in.find("layer_types");
  return types != nullptr && types->is_array() && std::find(types->begin(), types->end(), kSliding) != types->end();
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }
std::string family_names() { return joined(&Family::name); }
std::string gguf_architectures() { return joined(&Family::architecture); }

void complete_heads(ConfigReader& in) {
  std::int64_t dim = 0, heads = 0;
  in.read(dim, "hidden_size", in.get("hidden_size"));
  in.read(heads, "num_attention_heads", in.get("num_attention_heads"));
  in.put_default("num_key_value_heads", static_cast<std::uint64_t>(heads));
  if (heads > 0) in.put_default("head_dim", static_cast<std::uint64_t>(dim / heads));
}

void read_attention_bias(ConfigReader& in, DecoderConfig& config) {
  bool biased = false;
  const io::Json value = in.take("attention_bias");
  if (!value.is_null()) in.read(biased, "attention_bias", value);
  if (!biased) return;
  config.qkv_bias = QkvBias::learned;
  config.out_bias = Switch::on;
}

void complete_window(ConfigReader& in) {
  constexpr const char* kKey = "sliding_window";
  const io::Json& window = in.get(kKey);
  if (!lists_sliding_layers(in)) return;
  if (window.is_null()) io::fail(in.path(), "{} is null, but layer_types has {}", kKey, kSliding);
  std::int64_t size = 0;
  in.read(size, kKey, window);
  require_in(Range<std::int64_t>{1, kMaxSize}, kKey, size);
  in.put("attention_window", size);
}

void complete_last_windows(ConfigReader& in) {
  const bool uses = boolean_or(in, "use_sliding_window", false);
  in.take("use_sliding_window");
  const std::int64_t first = integer_or(in, "max_window_layers", 0);
  if (!uses || in.get("sliding_window").is_null()) {
    if (!lists_sliding_layers(in)) return;
    io::fail(in.path(), "layer_types has {}, but {}", kSliding,
             uses ? "sliding_window is null" : "use_sliding_window is not true");
  }
  io::Json types = io::Json::array();
  const std::int64_t layers = std::min(integer_or(in, "num_hidden_layers", 0), kMaxLayers);
  for (std::int64_t i = 0; i < layers; ++i) {
    types.push_back(std::string(word_of(i < first ? LayerType::full_attention : LayerType::sliding_attention)));
  }
  in.put_default("layer_types", types);
  complete_window(in);
}

}  // namespace headgate::models
