// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/families/config_reader.hpp"
#include "models/families/family.hpp"
#include "models/families/tensor_location.hpp"

// Helpers shared by families whose layers have different types.

namespace headgate::models {

/// Returns the integer value of a key, or `otherwise` if the key is missing or null.
std::int64_t integer_or(ConfigReader& in, std::string_view key, std::int64_t otherwise);

/// Returns the boolean value of a key, or `otherwise` if the key is missing or null.
bool boolean_or(ConfigReader& in, std::string_view key, bool otherwise);

/// Sets layer_types if the file lacks it: every Nth layer has full_attention, the rest have `other`. N is the value of
/// `key`, or `interval` without such a value. `key` may be a null pointer.
void complete_layer_types(ConfigReader& in, const char* key, std::int64_t interval, LayerType other);

/// Sets defaults of keys that config.json of Qwen's models with linear attention may lack. Accepts keys that do not
/// affect the decoder.
void complete_qwen_hybrid(ConfigReader& in);

/// Calls complete_qwen_hybrid(), for models with experts. Also sets the default that the shared expert has a gate.
void complete_qwen_experts(ConfigReader& in);

/// Sets the features that all of Qwen's models with linear attention have:
/// - zero-centred norms
/// - an elementwise gate on the attention output
/// - GateLayout::per_query_head: q_proj.weight stores, for each head, the rows of q and then the rows of its gate
void finish_qwen_hybrid(ConfigReader& in, FileConfig& out);

/// Locates the weights of the short convolution, which files store as (channels,1,K). Returns false for other
/// parameters.
bool locate_convolution(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                        const std::string& name);

/// Reads sizes of experts from a GGUF file: the number of experts, the number per token, and the widths of the routed
/// and shared experts.
void read_experts(GgufValues& in, Experts& experts);

/// Subtracts multi-token-prediction (MTP) layers from config.layers, because block_count of a GGUF file includes them.
void leave_out_further_layers(GgufValues& in, DecoderConfig& config);

/// Reads the layer types and the sizes of linear attention in Qwen's models, and sets their gate. Leaves out
/// multi-token-prediction (MTP) layers.
void read_qwen_hybrid(GgufValues& in, DecoderConfig& config);

/// Calls read_qwen_hybrid(), then reads the sizes of the experts.
void read_qwen_experts(GgufValues& in, DecoderConfig& config);

/// Order of value heads in a GGUF file:
/// - grouped: all value heads of the first key head, then all of the second, and so on.
/// - tiled: the first value head of every key head, then the second of every key head, and so on.
enum class ValueHeads { grouped, tiled };

/// Corrects the locations of parameters that GGUF files of Qwen's models with linear attention store in another order
/// or shape.
void locate_qwen_hybrid(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                        const std::string& block, const DecoderConfig& config, ValueHeads order);

/// Returns which rows of Qwen3-Next's tensor in_proj_qkvz are the rows of a parameter, in order. The parameter is
/// in_proj_z if `z` is true, otherwise in_proj_qkv.
std::vector<std::int64_t> rows_of_qkvz(const LinearLayers& linear, bool z);

/// Returns which rows of Qwen3-Next's tensor in_proj_ba are the rows of a parameter, in order. The parameter is
/// in_proj_a if `a` is true, otherwise in_proj_b.
std::vector<std::int64_t> rows_of_ba(const LinearLayers& linear, bool a);

}  // namespace headgate::models
