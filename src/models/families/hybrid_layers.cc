// SPDX-License-Identifier: Apache-2.0
#include "models/families/hybrid_layers.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "models/decoder/config_keys.hpp"
#include "models/families/gguf_values.hpp"

namespace headgate::models {

std::int64_t integer_or(ConfigReader& in, std::string_view key, std::int64_t otherwise) {
  const io::Json* value = in.find(key);
  if (value != nullptr && !value->is_null()) in.read(otherwise, key, *value);
  return otherwise;
}

bool boolean_or(ConfigReader& in, std::string_view key, bool otherwise) {
  const io::Json* value = in.find(key);
  if (value != nullptr && !value->is_null()) in.read(otherwise, key, *value);
  return otherwise;
}

void complete_layer_types(ConfigReader& in, const char* key, std::int64_t interval, LayerType other) {
  if (key != nullptr) interval = integer_or(in, key, interval);
  const std::int64_t layers = integer_or(in, "num_hidden_layers", 0);
  if (interval < 1) io::fail(in.path(), "{} is {} but must be above 0", key, interval);
  io::Json types = io::Json::array();
  for (std::int64_t i = 0; i < std::min(layers, kMaxLayers); ++i) {
    types.push_back(std::string(word_of((i + 1) % interval == 0 ? LayerType::full_attention : other)));
  }
  in.put_default("layer_types", types);
}

void complete_qwen_hybrid(ConfigReader& in) {
  constexpr std::int64_t kInterval = 4;
  constexpr double kRopeShare = 0.25;
  complete_heads(in);
  // If the file has the key with the value null, the default of kConfigKeys applies, which is 1.
  if (!in.has("partial_rotary_factor")) in.put("partial_rotary_factor", kRopeShare);
  complete_layer_types(in, "full_attention_interval", kInterval, LayerType::linear_attention);
  for (const char* key : {"mrope_section", "mrope_interleaved", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                          "mamba_ssm_dtype", "output_router_logits", "router_aux_loss_coef"}) {
    in.ignore(key);
  }
  in.require_value("attn_output_gate", true);
}

void complete_qwen_experts(ConfigReader& in) {
  complete_qwen_hybrid(in);
  in.put("shared_expert_gate", true);
}

void finish_qwen_hybrid(ConfigReader&, FileConfig& out) {
  out.config.norm = layers::NormKind::zero_centred;
  out.config.gate.site = layers::GateSite::g1;
  out.config.gate.grain = layers::GateGrain::elementwise;
  out.layout = GateLayout::per_query_head;
}

bool locate_convolution(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                        const std::string& name) {
  if (rest != "linear_attn.conv1d.weight") return false;
  out.pieces.push_back({name, {parameter.shape[0], 1, parameter.shape[1]}, {}});
  return true;
}

std::vector<std::int64_t> rows_of_qkvz(const LinearLayers& l, bool z) {
  const std::int64_t R = l.value_heads / l.key_heads, D = l.key_dim, values = R * l.value_dim;
  const std::int64_t group = 2 * D + 2 * values;
  std::vector<std::int64_t> rows;
  const auto add = [&](std::int64_t offset, std::int64_t count) {
    for (std::int64_t head = 0; head < l.key_heads; ++head) {
      for (std::int64_t i = 0; i < count; ++i) rows.push_back(head * group + offset + i);
    }
  };
  if (z) {
    add(2 * D + values, values);
  } else {
    add(0, D);
    add(D, D);
    add(2 * D, values);
  }
  return rows;
}

std::vector<std::int64_t> rows_of_ba(const LinearLayers& l, bool a) {
  const std::int64_t R = l.value_heads / l.key_heads;
  std::vector<std::int64_t> rows;
  for (std::int64_t head = 0; head < l.value_heads; ++head) rows.push_back(head / R * 2 * R + (a ? R : 0) + head % R);
  return rows;
}

// --- GGUF --------------------------------------------------------------------------------------------------------

void read_experts(GgufValues& in, Experts& experts) {
  experts.count = in.integer("expert_count");
  experts.active = in.integer("expert_used_count");
  experts.ffn = in.integer("expert_feed_forward_length");
  experts.shared_ffn = in.integer("expert_shared_feed_forward_length", 0);
}

void leave_out_further_layers(GgufValues& in, DecoderConfig& config) {
  const std::int64_t further = in.integer("nextn_predict_layers", 0);
  if (further < 0 || further >= config.layers) {
    io::fail(in.file().path(), "nextn_predict_layers is {} of block_count {}", further, config.layers);
  }
  config.layers -= further;
}

void read_qwen_hybrid(GgufValues& in, DecoderConfig& config) {
  constexpr std::int64_t kInterval = 4;
  config.gate.site = layers::GateSite::g1;
  config.gate.grain = layers::GateGrain::elementwise;
  leave_out_further_layers(in, config);
  LinearLayers& l = config.linear;
  l.kernel = in.integer("ssm.conv_kernel");
  l.key_dim = in.integer("ssm.state_size");
  l.key_heads = in.integer("ssm.group_count");
  l.value_heads = in.integer("ssm.time_step_rank");
  const std::int64_t values = in.integer("ssm.inner_size");
  if (l.value_heads < 1 || values % l.value_heads != 0) {
    io::fail(in.file().path(), "ssm.inner_size {} is not a multiple of ssm.time_step_rank {}", values, l.value_heads);
  }
  l.value_dim = values / l.value_heads;
  const std::int64_t interval = in.integer("full_attention_interval", kInterval);
  if (interval < 1) io::fail(in.file().path(), "full_attention_interval is {}", interval);
  const std::vector<bool> recurrent = in.booleans("attention.recurrent_layers");
  for (std::int64_t i = 0; i < std::min(config.layers, kMaxLayers); ++i) {
    const bool listed = i < std::ssize(recurrent) && recurrent[static_cast<std::size_t>(i)];
    const bool linear = recurrent.empty() ? (i + 1) % interval != 0 : listed;
    config.layer_types.push_back(linear ? LayerType::linear_attention : LayerType::full_attention);
  }
}

void read_qwen_experts(GgufValues& in, DecoderConfig& config) {
  read_qwen_hybrid(in, config);
  read_experts(in, config.experts);
  config.experts.shared_gate = Switch::on;
}

namespace {

/// Returns the index in the file of value head h. Head h belongs to key head h / R, where R is the number of value
/// heads per key head.
std::int64_t stored_head(const LinearLayers& l, std::int64_t h, ValueHeads order) {
  const std::int64_t R = l.value_heads / l.key_heads;
  return order == ValueHeads::grouped ? h : h % R * l.key_heads + h / R;
}

/// Appends to `rows` the indices of the file's rows for value head 0, then for value head 1, and so on. Each head has
/// `size` rows. The first value head in the file begins at row `first`.
void add_value_heads(std::vector<std::int64_t>& rows, const LinearLayers& l, std::int64_t first, std::int64_t size,
                     ValueHeads order) {
  for (std::int64_t h = 0; h < l.value_heads; ++h) {
    const std::int64_t begin = first + stored_head(l, h, order) * size;
    for (std::int64_t i = 0; i < size; ++i) rows.push_back(begin + i);
  }
}

}  // namespace

void locate_qwen_hybrid(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                        const std::string& block, const DecoderConfig& config, ValueHeads order) {
  const LinearLayers& l = config.linear;
  const bool gate = rest == "self_attn.gate_proj.weight";
  if (gate || rest == "self_attn.q_proj.weight") {
    FusedRows rows = fused_rows(GateLayout::per_query_head, config);
    const std::int64_t count = q_projection_rows(GateLayout::per_query_head, config);
    out.pieces = {{block + "attn_q.weight", {count, config.dim}, gate ? std::move(rows.gate) : std::move(rows.q)}};
  } else if (rest == "post_attention_layernorm.weight") {
    out = whole_tensor(parameter, block + "post_attention_norm.weight");
  }
  if (order == ValueHeads::grouped || l.key_heads == l.value_heads) return;
  const std::int64_t keys = 2 * l.key_heads * l.key_dim;
  std::vector<std::int64_t> rows;
  if (rest == "linear_attn.in_proj_qkv.weight" || rest == "linear_attn.conv1d.weight") {
    rows = row_range(0, keys);
    add_value_heads(rows, l, keys, l.value_dim, order);
  } else if (rest == "linear_attn.in_proj_z.weight") {
    add_value_heads(rows, l, 0, l.value_dim, order);
  } else if (rest == "linear_attn.in_proj_a.weight" || rest == "linear_attn.in_proj_b.weight" ||
             rest == "linear_attn.A_log" || rest == "linear_attn.dt_bias") {
    add_value_heads(rows, l, 0, 1, order);
  } else if (rest == "linear_attn.out_proj.weight") {
    add_value_heads(out.columns, l, 0, l.value_dim, order);
  }
  if (!rows.empty()) out.pieces.front().rows = std::move(rows);
}

}  // namespace headgate::models
