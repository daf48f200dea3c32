// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <string_view>

#include "models/families/gguf_values.hpp"
#include "models/families/hybrid_layers.hpp"

// Describes Gemma 3, which has no gates. Of six layers, five have sliding attention and one has full attention; each
// type has its own RoPE base. Zero-centred RMSNorm is applied before and after attention and MLP. The activation is
// GELU, and embeddings are scaled.

namespace headgate::models {
namespace {

constexpr std::array kGemma3Renames{
    TensorRename{"attention_output_layernorm.weight", "post_attention_layernorm.weight"},
    TensorRename{"post_attention_layernorm.weight", "pre_feedforward_layernorm.weight"},
    TensorRename{"mlp_output_layernorm.weight", "post_feedforward_layernorm.weight"}};

constexpr std::array<std::string_view, 1> kGemma3Keys{"layer_types"};

void complete_gemma3(ConfigReader& in) {
  constexpr std::int64_t kInterval = 6, kScalar = 256;
  complete_heads(in);
  in.require_value("hidden_activation", "gelu_pytorch_tanh");
  in.require_value("hidden_act", "gelu_pytorch_tanh");
  in.take("hidden_act");
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) in.require_value(key, nullptr);
  in.require_value("use_bidirectional_attention", false);
  complete_layer_types(in, "sliding_window_pattern", kInterval, LayerType::sliding_attention);
  in.ignore("_sliding_window_pattern");  // transformers writes this key but never reads it
  complete_window(in);
  double local_base = 1e4;
  const io::Json* base = in.find("rope_local_base_freq");
  if (base != nullptr && !base->is_null()) in.read(local_base, "rope_local_base_freq", *base);
  in.put_default("sliding_rope_theta", local_base);
  double scalar = kScalar;
  const io::Json* given = in.find("query_pre_attn_scalar");
  if (given != nullptr && !given->is_null()) in.read(scalar, "query_pre_attn_scalar", *given);
  if (!(scalar > 0.0)) io::fail(in.path(), "query_pre_attn_scalar is {}, not above 0", scalar);
  in.put("attention_scale", 1.0 / std::sqrt(scalar));
  in.put("embedding_scale", std::sqrt(static_cast<double>(integer_or(in, "hidden_size", 1))));
  for (const char* key : {"cache_implementation", "boi_token_index", "eoi_token_index", "image_token_index"}) {
    in.ignore(key);
  }
}

/// Sets the features of Gemma 3 for GGUF files. GGUF files store norm weights as 1 + w, so the norms are plain, not
/// zero-centred. They do not store the scale of attention scores, which is the default in all but the 27B model.
void finish_gemma3_gguf(GgufValues& in, DecoderConfig& config) {
  constexpr std::int64_t kInterval = 6, kLayersOf27B = 62;
  config.norm_placement = NormPlacement::sandwich;
  config.activation = Activation::gelu_tanh;
  config.embedding_scale = std::sqrt(static_cast<double>(config.dim));
  config.window = in.integer("attention.sliding_window", 0);
  config.sliding.rope_base = in.number("rope.freq_base_swa", 1e4);
  config.sliding.rope_fraction = config.rope_fraction;
  if (in.number("final_logit_softcapping", 0.0) != 0.0) {
    io::fail(in.file().path(), "gemma3.final_logit_softcapping is not supported");
  }
  const std::int64_t interval = in.integer("attention.sliding_window_pattern", kInterval);
  if (interval < 1) io::fail(in.file().path(), "gemma3.attention.sliding_window_pattern is {}", interval);
  for (std::int64_t i = 0; i < config.layers && config.window > 0; ++i) {
    config.layer_types.push_back((i + 1) % interval == 0 ? LayerType::full_attention : LayerType::sliding_attention);
  }
  if (config.layers == kLayersOf27B) {
    config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.dim) / static_cast<double>(config.heads));
  }
}

}  // namespace

const Family kGemma3{.name = "gemma3_text",
                     .model_class = "Gemma3ForCausalLM",
                     .architecture = "gemma3",
                     .outer_name = "gemma3",
                     .features = Features::own,
                     .has_other_parts = true,
                     .defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                                     "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                                     "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
                                     "tie_word_embeddings": true, "sliding_window": 4096})",
                     .shared_keys = kGemma3Keys,
                     .rope = RopeObject::by_layer_type,
                     .rope_base = 1e6,
                     .complete = complete_gemma3,
                     .finish =
                         [](ConfigReader& in, FileConfig& out) {
                           read_attention_bias(in, out.config);
                           out.config.norm = layers::NormKind::zero_centred;
                           out.config.norm_placement = NormPlacement::sandwich;
                           out.config.activation = Activation::gelu_tanh;
                         },
                     .finish_gguf = finish_gemma3_gguf,
                     .renames = kGemma3Renames,
                     .locate = nullptr};

}  // namespace headgate::models
