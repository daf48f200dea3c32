// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/decoder/config.hpp"
#include "models/decoder/parameters.hpp"
#include "models/families/config_reader.hpp"
#include "models/families/gate_layout.hpp"
#include "models/io/gguf.hpp"

// Describes families of models: how their files name sizes and tensors, and which features of this decoder they have.
// Each family has one file; families.cc lists them.

namespace headgate::models {

/// How the two features that RoPE rotates together are stored: i and i + R/2, or 2i and 2i + 1.
enum class RopePairs { halves, neighbours };

/// Whether a family has the features of Qwen3 only, or others, which `finish` sets and checks.
enum class Features { of_qwen3, own };

/// How rope_parameters of a config.json is laid out: RoPE of all layers, or an object for each type of layer.
enum class RopeObject { flat, by_layer_type };

class GgufValues;
struct Family;

inline constexpr std::int64_t kNoBos = -1;

/// Holds what a config.json says.
struct FileConfig {
  DecoderConfig config;
  GateLayout layout = GateLayout::separate;
  const Family* family = nullptr;       ///< the family that it names; null before there is a file
  std::string prefix = "model.";        ///< of the tensors' names; that of a model with images is longer
  std::string head = "lm_head.weight";  ///< the name of the matrix of the logits
  std::int64_t further_layers = 0;      ///< layers in the file behind the model's own, which predict further tokens
  /// Of a model to write that reads bytes: the id before every text, as bos_token_id, or kNoBos.
  std::optional<std::int64_t> bos = std::nullopt;
};

/// A layer's tensor whose name in a family's files is not this library's.
struct TensorRename {
  std::string_view ours, theirs;
};

struct TensorLocation;
using ShapeOf = std::function<const std::vector<std::int64_t>*(const std::string&)>;

struct Family {
  std::string_view name;          ///< model_type of its config.json
  std::string_view model_class;   ///< architectures of its config.json
  std::string_view architecture;  ///< general.architecture of its GGUF files; empty: it has none
  /// model_type of a config.json whose text_config is this family's; empty: it has none.
  std::string_view outer_name = {};
  RopePairs gguf_pairs = RopePairs::halves;
  Features features = Features::of_qwen3;
  /// Its files may also hold models of images, and one that predicts further tokens.
  bool has_other_parts = false;
  /// Keys that its config.json may lack, and the values that transformers gives them: an object of JSON.
  std::string_view defaults = "{}";
  /// Keys of kConfigKeys that its config.json has with the same meaning, beside those of all families.
  std::span<const std::string_view> shared_keys = {};
  RopeObject rope = RopeObject::flat;
  double rope_base = 1e4;  ///< where a config.json has no rope_theta
  /// Sets keys of kConfigKeys by its own keys, and those that depend on others.
  void (*complete)(ConfigReader& in) = nullptr;
  /// Reads what its config.json says beyond kConfigKeys, which have been read. Refuses by name what the decoder does
  /// not support.
  void (*finish)(ConfigReader& in, FileConfig& out) = nullptr;
  /// Sets features that every model of the architecture has, and reads its own keys in GGUF files.
  void (*finish_gguf)(GgufValues& in, DecoderConfig& config) = nullptr;
  /// Changes where a GGUF file has a parameter of a layer; `out` says where other families have it. `block`: "blk.N.".
  void (*locate_gguf)(TensorLocation& out, const Parameter& parameter, std::string_view rest, const std::string& block,
                      const DecoderConfig& config) = nullptr;
  /// Names of a layer's tensors in directories, where they are others.
  std::span<const TensorRename> renames = {};
  /// Locates a parameter of a layer in a directory, if its rows lie there in another way than `renames` says; else
  /// returns false. `rest`: its name after "model.layers.N."; `prefix`: what the file has before that.
  bool (*locate)(TensorLocation& out, const Parameter& parameter, std::string_view rest, const std::string& prefix,
                 const FileConfig& file, const LayerConfig& layer, const ShapeOf& shape_of) = nullptr;
};

extern const Family kLlama, kMistral, kQwen2, kQwen3, kHeadgate;
extern const Family kQwen35, kQwen35Moe, kQwen3Next, kOlmoHybrid, kAfmoe, kStep3p5, kGemma3, kGptOss;

std::span<const Family* const> families();
/// "llama, mistral, …".
std::string family_names();
std::string gguf_architectures();

/// Sets num_key_value_heads to num_attention_heads and head_dim to hidden_size / num_attention_heads where they are
/// missing or null.
void complete_heads(ConfigReader& in);

/// Reads attention_bias: whether q, k, v and the output projection have biases.
void read_attention_bias(ConfigReader& in, DecoderConfig& config);

/// Sets attention_window to sliding_window if layer_types has sliding_attention. Throws if it is null then.
void complete_window(ConfigReader& in);

/// Sets layer_types and the window of Qwen2 and Qwen3: layers from max_window_layers on have one if use_sliding_window.
void complete_last_windows(ConfigReader& in);

}  // namespace headgate::models
