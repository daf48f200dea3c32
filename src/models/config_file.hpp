// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "io/file_error.hpp"
#include "models/config.hpp"

// config.json, as Hugging Face has it for Qwen3. Required:
//   model_type                 "qwen3", or "headgate" where Qwen3 would compute something else
//   vocab_size
//   hidden_size
//   num_hidden_layers
//   num_attention_heads
//   num_key_value_heads
//   head_dim
//   intermediate_size
//   max_position_embeddings
//   rms_norm_eps
//   rope_theta                 may also stand in rope_parameters
//   tie_word_embeddings
//
// Optional; the first word or number is what a missing key means:
//   initializer_range          0.02
//   norm_kind                  plain, zero_centred
//   norm_placement             pre, sandwich
//   qk_norm                    per_head, none
//   partial_rotary_factor      1.0
//   gate_site                  none, g1, g2, g3, g4, g5
//   gate_grain                 elementwise, headwise, head_shared
//   gate_source                input, parameter
//   gate_fn                    sigmoid, sigmoid2, ns_sigmoid, silu, softplus, identity
//   gate_op                    mul, add
//   gate_bias                  none, bias
//   gate_bias_init             0.0
//   gate_init_std              0.02
//   attention_output_control   none, head_rmsnorm, output_silu
//   attention_sinks            none, learned_sinks, off_by_one
//
// Keys of Qwen3 that would change the model (hidden_act, attention_bias, …) are read only with the values that this
// decoder has, those that do not matter to it (dtype, use_cache, …) are passed over, and any other key is refused.

namespace headgate::models {

/// Whether `transformers` computes the same as this decoder when it takes the config for Qwen3's.
bool is_qwen3(const DecoderConfig& config);

/// The text of a config.json.
std::string write_config(const DecoderConfig& config);

/// The config that a config.json's text holds, valid. `path` begins every message. Throws io::FileError, naming the
/// key.
DecoderConfig parse_config(const std::string& path, std::string_view text);

/// Reads a config.json. Throws io::FileError.
DecoderConfig read_config(const std::string& path);

}  // namespace headgate::models
