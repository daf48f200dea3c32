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

// What families whose layers differ have in common.

namespace headgate::models {

/// Reads a whole number; `otherwise` if the key is missing or null.
std::int64_t integer_or(ConfigReader& in, std::string_view key, std::int64_t otherwise);

/// Returns the value of a key that is true or false; `otherwise` if it is missing or null.
bool boolean_or(ConfigReader& in, std::string_view key, bool otherwise);

/// Sets layer_types, where the file lacks them: full_attention in every Nth layer, else `other`. N is `interval`, or
/// what `key` says, unless that is null.
void complete_layer_types(ConfigReader& in, const char* key, std::int64_t interval, LayerType other);

/// Sets what Qwen's models with layers of linear attention let a config.json lack, and accepts what does not matter.
void complete_qwen_hybrid(ConfigReader& in);

/// Does so for those with experts.
void complete_qwen_experts(ConfigReader& in);

/// Sets what all of them have: zero-centred norms, and a gate of the attention output among the rows of q.
void finish_qwen_hybrid(ConfigReader& in, FileConfig& out);

/// Locates the weights of the convolution, which files store as (channels,1,K).
bool locate_convolution(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                        const std::string& name);

/// Reads a GGUF file's experts: their number, those of a token, and their widths.
void read_experts(GgufValues& in, Experts& experts);

/// Subtracts the layers that predict further tokens, which a GGUF file counts, from the model's own.
void leave_out_further_layers(GgufValues& in, DecoderConfig& config);

/// Reads which layers have linear attention, and its sizes; sets what all such models of Qwen have. Layers that predict
/// further tokens do not count.
void read_qwen_hybrid(GgufValues& in, DecoderConfig& config);

/// Does so for those with experts.
void read_qwen_experts(GgufValues& in, DecoderConfig& config);

/// How a GGUF file orders value heads: those of a key head one after the other, or one of each key head in turn.
enum class ValueHeads { grouped, tiled };

/// Locates what differs in GGUF files of Qwen's models with layers of linear attention.
void locate_qwen_hybrid(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                        const std::string& block, const DecoderConfig& config, ValueHeads order);

/// Returns the rows of Qwen3-Next's in_proj_qkvz that are in_proj_qkv's, or in_proj_z's.
std::vector<std::int64_t> rows_of_qkvz(const LinearLayers& linear, bool z);

/// Returns the rows of Qwen3-Next's in_proj_ba that are in_proj_b's, or in_proj_a's.
std::vector<std::int64_t> rows_of_ba(const LinearLayers& linear, bool a);

}  // namespace headgate::models
