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

/// Whether the logits are computed with the embedding table itself or with a separate matrix.
enum class Embeddings : std::int32_t { tied, separate };

using layers::QkNorm;
using layers::QkvBias;

/// pre: norms before the mixer and the MLP only. sandwich: also norms of their outputs, before the residual addition.
/// post: norms of the outputs only, except that layers of linear attention have pre (OLMo-Hybrid).
enum class NormPlacement : std::int32_t { pre, sandwich, post };

/// Activation of the MLP: act(gate) ∘ up. gelu_tanh: GELU by its tanh formula.
using layers::Activation;

/// How a layer mixes tokens: attention to all tokens before each, attention to those of the window, or Gated DeltaNet.
enum class LayerType : std::int32_t { full_attention, sliding_attention, linear_attention };

/// A feature that a model has or lacks.
enum class Switch : std::int32_t { off, on };

/// What differs in layers of sliding attention from those of full attention, where a model has both.
struct SlidingLayers {
  std::int64_t heads = 0;            ///< query heads; 0: as many as elsewhere
  double rope_base = 0.0;            ///< 0: RoPE as elsewhere; else with this base
  double rope_fraction = 1.0;        ///< as DecoderConfig's, for rope_base above 0
  Switch rope_scaled = Switch::off;  ///< for rope_base above 0: scaled as elsewhere, or not

  friend bool operator==(const SlidingLayers&, const SlidingLayers&) = default;
};

/// Sizes of layers of linear attention: Gated DeltaNet.
struct LinearLayers {
  std::int64_t key_heads = 0;    ///< heads of q and k; 0: the model has no such layer
  std::int64_t value_heads = 0;  ///< a multiple of key_heads
  std::int64_t key_dim = 128;
  std::int64_t value_dim = 128;
  std::int64_t kernel = 4;  ///< tokens that the convolution sees
  double beta_scale = 1.0;  ///< β = beta_scale · σ(b); 2: eigenvalues of the state's update may be negative
  double norm_eps = 0.0;    ///< of the output's norm; 0: the model's

  friend bool operator==(const LinearLayers&, const LinearLayers&) = default;
};

using layers::ExpertActivation;
using layers::ExpertRouter;

/// Sizes of MLPs that are mixtures of experts.
struct Experts {
  std::int64_t count = 0;         ///< 0: the MLP of every layer is dense
  std::int64_t active = 0;        ///< experts of a token
  std::int64_t ffn = 0;           ///< width of an expert
  std::int64_t shared_ffn = 0;    ///< width of the expert of all tokens; 0: none
  std::int64_t dense_layers = 0;  ///< layers at the start that have a dense MLP
  ExpertRouter router = ExpertRouter::softmax;
  Switch renormalise = Switch::on;   ///< the weights of a token's experts add up to 1 before `scale`
  double scale = 1.0;                ///< of the weights of a token's experts
  Switch shared_gate = Switch::off;  ///< a sigmoid gate of the expert of all tokens
  Switch biases = Switch::off;       ///< learned vectors added to the router's logits and to each expert's products
  ExpertActivation activation = ExpertActivation::swiglu;  ///< of the experts that a router chooses
  std::vector<double> limits;         ///< of each layer: clamps experts' activations; 0: none; empty: none anywhere
  std::vector<double> shared_limits;  ///< the same for the expert of all tokens

  friend bool operator==(const Experts&, const Experts&) = default;
};

/// Describes a decoder-only model such as Llama, Qwen3, Gemma 3 and Qwen3.5: RMSNorm, grouped-query attention or Gated
/// DeltaNet, a gated MLP or experts, no biases except those of attention and of experts.
struct DecoderConfig {
  std::int64_t vocab = 256;
  std::int64_t dim = 256;
  std::int64_t layers = 6;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 4;   ///< divides heads
  std::int64_t head_dim = 32;  ///< 1 to 512
  std::int64_t ffn = 768;
  std::int64_t seq_len = 256;  ///< the longest sequence: rows of the RoPE tables

  layers::NormKind norm = layers::NormKind::plain;
  double norm_eps = 1e-6;
  NormPlacement norm_placement = NormPlacement::pre;
  QkNorm qk_norm = QkNorm::per_head;
  Embeddings embeddings = Embeddings::tied;

  double rope_base = 10000.0;
  double rope_fraction = 1.0;  ///< share of head_dim that RoPE rotates (partial_rotary_factor); 0: no RoPE
  double init_std = 0.02;      ///< of every matrix except the gate's: N(0, init_std)

  layers::GateVariant gate;

  QkvBias qkv_bias = QkvBias::none;
  Switch out_bias = Switch::off;  ///< adds a learned vector to attention's output projection
  /// Keys that a query sees, including its own, the last of them; 0: all before it. With layer_types, in layers of
  /// sliding attention only.
  std::int64_t window = 0;
  layers::RopeScalingKind rope_scaling = layers::RopeScalingKind::none;
  double rope_factor = 1.0;
  double rope_low_freq_factor = 1.0;
  double rope_high_freq_factor = 4.0;
  std::int64_t rope_original_seq_len = 8192;
  Switch rope_truncate = Switch::on;
  double rope_attention_factor = 0.0;

  std::vector<LayerType> layer_types;  ///< one for each layer; empty: attention, with `window` if there is one
  double attention_scale = 0.0;        ///< of the scores q·k; 0: 1/√head_dim
  double embedding_scale = 1.0;        ///< of the embeddings as the first layer reads them
  Activation activation = Activation::silu;
  SlidingLayers sliding;
  LinearLayers linear;
  Experts experts;

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

/// What one layer computes.
struct LayerConfig {
  LayerType type = LayerType::full_attention;
  std::int64_t heads = 0;   ///< query heads
  std::int64_t window = 0;  ///< as DecoderConfig's
  double rope_base = 0.0;
  double rope_fraction = 0.0;
  layers::RopeScaling rope_scaling;
  bool norms_inputs = true;    ///< of the mixer and the MLP
  bool norms_outputs = false;  ///< before the residual addition
  bool experts = false;        ///< its MLP is a mixture of experts
  double limit = 0.0, shared_limit = 0.0;
};
LayerConfig layer_config(const DecoderConfig& config, std::int64_t layer);

/// Returns whether a layer of the type exists.
bool has_layer(const DecoderConfig& config, LayerType type);

/// Returns the same model without a window that no layer has, and without layer_types that are all full_attention.
DecoderConfig in_short(DecoderConfig config);

/// How messages name a field: by its name in code, its key of config.json, or its option.
enum class NamesIn { code, file, command_line };

/// Throws Error, one line, naming the field and the values that do not fit. Bounds every size, so that products of
/// sizes of a valid config do not overflow 63 bits.
void validate(const DecoderConfig& config, NamesIn names = NamesIn::code);

/// Returns how a message names the field of a row of kConfigKeys.
using FieldNames = std::function<std::string(const FieldText&)>;
void validate(const DecoderConfig& config, const FieldNames& names);

/// Returns whether `transformers` computes the same as this decoder when it reads the config as Qwen3's.
bool is_qwen3(const DecoderConfig& config);

/// Returns how many features of a head RoPE rotates: rope_fraction · head_dim, rounded down to an even number.
std::int64_t rotary_dim(double rope_fraction, std::int64_t head_dim);

/// Returns why the decoder cannot train the model; empty if it can.
std::string reason_not_trained(const DecoderConfig& config);

/// Returns the number of parameters; tied embeddings count once.
std::int64_t parameter_count(const DecoderConfig& config);

/// Returns the same model without a gate, control, sink or sandwich norm.
DecoderConfig baseline_of(DecoderConfig config);

/// Changes ffn, in steps of 4, to come as close as possible to the baseline's parameter count at config.ffn. Throws
/// Error if the gate has more parameters than the whole MLP.
DecoderConfig match_params(const DecoderConfig& config);

class ParameterTable;

/// Returns the FLOPs, two a multiply-add, of a training step (forward and backward) on `batch` sequences of `seq`
/// tokens: 4 · matrix parameters · tokens for the output and the gradient of the input, 2 · trained matrix parameters ·
/// tokens, without the embedding gather, plus 6 · layers · heads · head_dim · 2 · pairs, where pairs is the number of
/// causal (query, key) pairs.
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
