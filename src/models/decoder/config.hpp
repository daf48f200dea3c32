// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "library/core/rows.hpp"
#include "library/core/words.hpp"
#include "models/layers/attention_buffers.hpp"
#include "models/layers/experts.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/layers/rmsnorm.hpp"
#include "models/layers/rope.hpp"
#include "models/layers/swiglu.hpp"

namespace headgate::models {

/// Selects the matrix that computes the logits: the embedding table (tied) or a separate matrix.
enum class Embeddings : std::int32_t { tied, separate };

using layers::QkNorm;
using layers::QkvBias;

/// Selects which inputs and outputs of a layer's mixer and MLP are normalized:
/// - pre: the inputs.
/// - sandwich: the inputs, and the outputs before they are added to the residual stream.
/// - post: the outputs. Layers of linear attention normalize the inputs instead (OLMo-Hybrid).
enum class NormPlacement : std::int32_t { pre, sandwich, post };

/// Activation function of the MLP, which computes activation(gate) ∘ up. gelu_tanh is GELU in its tanh approximation.
using layers::Activation;

/// Selects the mixer of a layer: causal attention to all previous tokens, attention to a sliding window, or Gated
/// DeltaNet.
enum class LayerType : std::int32_t { full_attention, sliding_attention, linear_attention };

enum class Switch : std::int32_t { off, on };

/// Settings that apply only to layers of type sliding_attention.
struct SlidingLayers {
  std::int64_t heads = 0;            ///< number of query heads; 0 means DecoderConfig::heads
  double rope_base = 0.0;            ///< base of RoPE's frequencies; 0 means the RoPE settings of DecoderConfig
  double rope_fraction = 1.0;        ///< fraction of head_dim that RoPE rotates; used only if rope_base > 0
  Switch rope_scaled = Switch::off;  ///< whether DecoderConfig::rope_scaling applies; used only if rope_base > 0

  friend bool operator==(const SlidingLayers&, const SlidingLayers&) = default;
};

/// Sizes of layers of linear attention (Gated DeltaNet).
struct LinearLayers {
  std::int64_t key_heads = 0;    ///< number of heads of q and k; 0 means that the model has no linear attention
  std::int64_t value_heads = 0;  ///< number of value heads, a multiple of key_heads
  std::int64_t key_dim = 128;
  std::int64_t value_dim = 128;
  std::int64_t kernel = 4;  ///< width of the causal convolution in tokens
  /// Factor of the write strength β = beta_scale · σ(b); 2 allows negative eigenvalues of the state transition.
  double beta_scale = 1.0;
  double norm_eps = 0.0;  ///< epsilon of the output norm; 0 means DecoderConfig::norm_eps

  friend bool operator==(const LinearLayers&, const LinearLayers&) = default;
};

using layers::ExpertActivation;
using layers::ExpertRouter;

/// Sizes and options of MLPs that are mixtures of experts.
struct Experts {
  std::int64_t count = 0;         ///< number of routed experts; 0 means that every layer has a dense MLP
  std::int64_t active = 0;        ///< number of routed experts selected for each token
  std::int64_t ffn = 0;           ///< width of a routed expert
  std::int64_t shared_ffn = 0;    ///< width of the shared expert, which processes every token; 0 means no shared expert
  std::int64_t dense_layers = 0;  ///< number of layers, from the first, that have a dense MLP
  ExpertRouter router = ExpertRouter::softmax;
  Switch renormalise = Switch::on;   ///< whether to divide the weights of a token's experts by their sum
  double scale = 1.0;                ///< factor that multiplies the weights of a token's experts
  Switch shared_gate = Switch::off;  ///< whether a sigmoid gate multiplies the output of the shared expert
  Switch biases = Switch::off;       ///< whether the router and the routed experts have biases
  ExpertActivation activation = ExpertActivation::swiglu;  ///< activation of the routed experts
  /// Bound of the routed experts' activations in each layer. 0 means that the layer has no bound. An empty list means
  /// that no layer has one.
  std::vector<double> limits;
  std::vector<double> shared_limits;  ///< bounds of the shared expert's activations, in the same form as `limits`

  friend bool operator==(const Experts&, const Experts&) = default;
};

/// Describes a decoder-only model such as Llama, Qwen3, Gemma 3 and Qwen3.5. Layers have RMSNorm, a mixer
/// (grouped-query attention or Gated DeltaNet), and a gated MLP or experts. Only attention and experts can have biases.
struct DecoderConfig {
  std::int64_t vocab = 256;
  std::int64_t dim = 256;
  std::int64_t layers = 6;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 4;   ///< number of key/value heads; must divide `heads`
  std::int64_t head_dim = 32;  ///< number of features per head, 1 to 576
  std::int64_t ffn = 768;
  std::int64_t seq_len = 256;  ///< maximum sequence length in tokens; also the number of rows of the RoPE tables

  layers::NormKind norm = layers::NormKind::plain;
  double norm_eps = 1e-6;
  NormPlacement norm_placement = NormPlacement::pre;
  QkNorm qk_norm = QkNorm::per_head;
  Embeddings embeddings = Embeddings::tied;

  double rope_base = 10000.0;
  double rope_fraction = 1.0;  ///< fraction of head_dim that RoPE rotates (partial_rotary_factor); 0 means no RoPE
  /// Standard deviation of the initial values of matrices. The gate's matrix has its own, GateVariant::init_std.
  double init_std = 0.02;

  layers::GateVariant gate;

  QkvBias qkv_bias = QkvBias::none;
  Switch out_bias = Switch::off;  ///< whether the output projection of attention has a bias
  /// Width of the attention window: the number of keys that a query attends to, including its own. 0 means no window.
  /// If layer_types is not empty, only layers of type sliding_attention use the window.
  std::int64_t window = 0;
  layers::RopeScalingKind rope_scaling = layers::RopeScalingKind::none;
  double rope_factor = 1.0;
  double rope_low_freq_factor = 1.0;
  double rope_high_freq_factor = 4.0;
  std::int64_t rope_original_seq_len = 8192;
  Switch rope_truncate = Switch::on;
  double rope_attention_factor = 0.0;

  /// Type of each layer; if empty, every layer has full_attention and uses `window`.
  std::vector<LayerType> layer_types;
  double attention_scale = 0.0;  ///< factor that multiplies the scores q·k; 0 means 1/√head_dim
  double embedding_scale = 1.0;  ///< factor that multiplies the embeddings before the first layer
  Activation activation = Activation::silu;
  SlidingLayers sliding;
  LinearLayers linear;
  Experts experts;

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

/// Holds the settings of one layer, derived from DecoderConfig.
struct LayerConfig {
  LayerType type = LayerType::full_attention;
  std::int64_t heads = 0;   ///< query heads
  std::int64_t window = 0;  ///< width of the attention window in keys; 0 means no window
  double rope_base = 0.0;
  double rope_fraction = 0.0;
  layers::RopeScaling rope_scaling;
  bool has_input_norms = true;  ///< whether the inputs of the mixer and of the MLP are normalized
  /// Whether the outputs of the mixer and of the MLP are normalized before the residual addition.
  bool has_output_norms = false;
  bool experts = false;  ///< whether the MLP is a mixture of experts
  double limit = 0.0, shared_limit = 0.0;
};
LayerConfig layer_config(const DecoderConfig& config, std::int64_t layer);

/// Returns whether the model has a layer of this type.
bool has_layer(const DecoderConfig& config, LayerType type);

/// Returns an equivalent config without redundant values. Clears `window` if no layer uses it. Clears `layer_types` if
/// every layer is full_attention.
DecoderConfig canonical_config(DecoderConfig config);

/// Selects how messages name a field: by its name in the code, its key in config.json, or its command-line option.
enum class NamesIn { code, file, command_line };

/// Throws Error if a config is not valid. The message is one line that names the field and the wrong value. Bounds
/// every size, so that products of the sizes of a valid config fit in 63 bits.
void validate(const DecoderConfig& config, NamesIn names = NamesIn::code);

/// Function that returns the name of a field for messages. Its argument is the field's row in the table kConfigKeys.
using FieldNames = std::function<std::string(const FieldText&)>;
void validate(const DecoderConfig& config, const FieldNames& names);

/// Returns whether the config describes a Qwen3 model, which `transformers` can run with the same results.
bool is_qwen3(const DecoderConfig& config);

/// Returns how many features of a head RoPE rotates: rope_fraction · head_dim, rounded down to an even number.
std::int64_t rotary_dim(double rope_fraction, std::int64_t head_dim);

/// Returns the rope_fraction that makes RoPE rotate `features` features of a head, or features − 1 if `features` is
/// odd. Rounding can make features / head_dim one ulp too small for rotary_dim(). In that case, returns the next larger
/// double.
double rope_fraction_of(std::int64_t features, std::int64_t head_dim);

/// Returns why the decoder cannot train the model, or an empty string if it can.
std::string reason_not_trained(const DecoderConfig& config);

/// Returns the number of parameters; tied embeddings count once.
std::int64_t parameter_count(const DecoderConfig& config);

/// Returns the config of a plain model for comparison: no gate, no OutputControl, no sinks, and NormPlacement::pre.
DecoderConfig baseline_of(DecoderConfig config);

/// Returns the config with a smaller MLP width `ffn`, so that it has about as many parameters as baseline_of(config).
/// Reduces ffn by the multiple of 4 that makes the two numbers of parameters differ least. Throws Error if ffn would
/// become less than 1.
DecoderConfig match_params(const DecoderConfig& config);

class ParameterTable;

/// Returns the FLOPs of one training step (forward and backward) on `batch` sequences of `seq` tokens. A multiply-add
/// counts as 2. The result is the sum of:
/// - 4 · matrix parameters · tokens, for the outputs and for the gradients of the inputs
/// - 2 · trained matrix parameters · tokens, for the gradients of the matrices
/// - 12 · heads · head_dim · pairs, for each attention layer. `pairs` is the number of (query, key) pairs that the
///   causal mask and the layer's window allow.
///
/// Does not count the embedding lookup.
double training_flops(const DecoderConfig& config, const ParameterTable& trained, std::int64_t batch, std::int64_t seq);

}  // namespace headgate::models

namespace headgate {

template <>
struct Words<models::Embeddings> {
  static constexpr std::array<Word<models::Embeddings>, 2> kAll{
      {{models::Embeddings::tied, "tied"}, {models::Embeddings::separate, "separate"}}};
};

template <>
struct Words<models::NormPlacement> {
  static constexpr std::array<Word<models::NormPlacement>, 3> kAll{{{models::NormPlacement::pre, "pre"},
                                                                    {models::NormPlacement::sandwich, "sandwich"},
                                                                    {models::NormPlacement::post, "post"}}};
};

template <>
struct Words<models::Switch> {
  static constexpr std::array<Word<models::Switch>, 2> kAll{{{models::Switch::off, "off"}, {models::Switch::on, "on"}}};
};

template <>
struct Words<models::LayerType> {
  static constexpr std::array<Word<models::LayerType>, 3> kAll{
      {{models::LayerType::full_attention, "full_attention"},
       {models::LayerType::sliding_attention, "sliding_attention"},
       {models::LayerType::linear_attention, "linear_attention"}}};
};

}  // namespace headgate
