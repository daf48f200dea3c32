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
#include "models/io/json.hpp"

// Describes families of models: how their files name sizes and tensors, and which features of this decoder they have.
// Each family has one file; families.cc lists them.

namespace headgate::models {

/// Selects the two features that RoPE rotates together: i and i + R/2 (halves), or 2i and 2i + 1 (neighbours).
enum class RopePairs { halves, neighbours };

/// Selects which features the models in a family's GGUF files may have:
/// - of_qwen3: only those of Qwen3, which has no experts.
/// - own: further features, which Family::finish_gguf reads.
enum class Features { of_qwen3, own };

/// Selects the layout of rope_parameters in config.json:
/// - flat: one object for all layers.
/// - by_layer_type: an object for each type of layer.
enum class RopeObject { flat, by_layer_type };

class GgufValues;
struct Family;

inline constexpr std::int64_t kNoBos = -1;

/// Holds the content of a config.json, and the names of tensors in the model's files.
struct FileConfig {
  DecoderConfig config;
  GateLayout layout = GateLayout::separate;
  const Family* family = nullptr;       ///< family named by the file; null if there is no file yet
  std::string prefix = "model.";        ///< prefix of tensor names; longer in models with images
  std::string head = "lm_head.weight";  ///< name of the output projection's tensor
  std::int64_t further_layers = 0;      ///< number of multi-token-prediction (MTP) layers
  /// Value of bos_token_id in the config.json to write, for a model that reads bytes.
  /// - kNoBos: null is written, which means that no BOS precedes a text.
  /// - empty: the key is not written.
  std::optional<std::int64_t> bos = std::nullopt;
  io::Json end_ids = nullptr;  ///< value of eos_token_id to write; if null, the key is not written
};

/// Maps a layer tensor's name in this library to its name in a family's files.
struct TensorRename {
  std::string_view ours, theirs;
};

struct TensorLocation;
using ShapeOf = std::function<const std::vector<std::int64_t>*(const std::string&)>;

struct Family {
  std::string_view name;          ///< model_type in config.json
  std::string_view model_class;   ///< architectures in config.json
  std::string_view architecture;  ///< general.architecture in GGUF files; empty if GGUF is not supported
  /// model_type of larger models, such as models that read images, whose config.json contains this family's config as
  /// text_config. Empty if there are none.
  std::string_view outer_name = {};
  RopePairs gguf_pairs = RopePairs::halves;
  Features features = Features::of_qwen3;
  /// True if files may also contain a vision model or a multi-token-prediction (MTP) module. Both are ignored.
  bool has_other_parts = false;
  /// JSON object with the defaults that transformers gives to keys missing in config.json.
  std::string_view defaults = "{}";
  /// Further keys of kConfigKeys that have the same meaning in this family's config.json. Keys that all families have
  /// are not listed.
  std::span<const std::string_view> shared_keys = {};
  RopeObject rope = RopeObject::flat;
  double rope_base = 1e4;  ///< base of RoPE if config.json has no rope_theta
  /// Runs before the keys of kConfigKeys are read. Translates the family's own keys to keys of kConfigKeys. Fills in
  /// defaults that depend on other keys.
  void (*complete)(ConfigReader& in) = nullptr;
  /// Runs after the keys of kConfigKeys are read. Reads the family's other keys. Throws if a key needs a feature that
  /// the decoder does not support; the message names the feature.
  void (*finish)(ConfigReader& in, FileConfig& out) = nullptr;
  /// Sets the features that all models of a GGUF architecture share, and reads the keys that only this architecture
  /// has.
  void (*finish_gguf)(GgufValues& in, DecoderConfig& config) = nullptr;
  /// Corrects `out`, the location of a layer's parameter in a GGUF file, where this architecture departs from
  /// llama.cpp's usual names and layout. `rest` is the parameter's name after "model.layers.N."; `block` is "blk.N.".
  void (*locate_gguf)(TensorLocation& out, const Parameter& parameter, std::string_view rest, const std::string& block,
                      const DecoderConfig& config) = nullptr;
  /// Names of layer tensors in the family's safetensors files, where they differ from this library's names.
  std::span<const TensorRename> renames = {};
  /// Locates a layer's parameter if the family's safetensors files store it in another form, for example fused or
  /// transposed. Otherwise returns false. `rest` is the parameter's name after "model.layers.N."; `prefix` is what the
  /// file has in place of "model.layers.N.".
  bool (*locate)(TensorLocation& out, const Parameter& parameter, std::string_view rest, const std::string& prefix,
                 const FileConfig& file, const LayerConfig& layer, const ShapeOf& shape_of) = nullptr;
};

/// Lists all families, in the order in which messages name them. Each is defined in a file family_*.cc.
#define HEADGATE_FAMILIES(Row)                                                                                    \
  Row(kLlama) Row(kMistral) Row(kQwen2) Row(kQwen3) Row(kQwen35) Row(kQwen35Moe) Row(kQwen3Next) Row(kOlmoHybrid) \
      Row(kAfmoe) Row(kStep3p5) Row(kGemma3) Row(kGptOss) Row(kHeadgate)

#define HEADGATE_DECLARE_FAMILY(family) extern const Family family;
HEADGATE_FAMILIES(HEADGATE_DECLARE_FAMILY)
#undef HEADGATE_DECLARE_FAMILY

std::span<const Family* const> families();
/// Returns the names of all families: "llama, mistral, …".
std::string family_names();
std::string gguf_architectures();

/// Sets two keys that are missing or null: num_key_value_heads to num_attention_heads, and head_dim to hidden_size /
/// num_attention_heads.
void complete_heads(ConfigReader& in);

/// Reads attention_bias: whether q, k, v and the output projection have biases.
void read_attention_bias(ConfigReader& in, DecoderConfig& config);

/// Sets attention_window to sliding_window if layer_types has sliding_attention. Throws if sliding_window is then null.
void complete_window(ConfigReader& in);

/// Sets layer_types and the window of Qwen2 and Qwen3. If use_sliding_window is true, layers max_window_layers and
/// above have a sliding window.
void complete_last_windows(ConfigReader& in);

}  // namespace headgate::models
