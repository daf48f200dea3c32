// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "library/core/range.hpp"
#include "library/core/rows.hpp"
#include "library/core/words.hpp"
#include "models/decoder/config.hpp"

// Defines the name, range, default and help text of each field of a DecoderConfig. config.json, command-line options,
// validation and documents are based on these definitions.

namespace headgate::models {

/// Tells when config.json contains a key. Readers throw if a required key is missing. If any other key is missing, its
/// field has the default value.
enum class Presence {
  required,
  always,           ///< written always
  headgate_always,  ///< written only in files with this library's own model_type, headgate
  if_changed,       ///< written if the value differs from the field's default
  /// Written only in files with model_type headgate, if the value differs from the field's default.
  headgate_if_changed,
  with_gate  ///< written if any setting of the gate differs from its default
};

/// Selects which values a field can have in a config that describes a Qwen3 model: any value, or only the default.
enum class InQwen3 { any, default_alone };

/// Heading in --help under which the field's option is listed.
enum class OptionGroup { model, gate, controls };

/// Provides the element type of V if V is a std::vector, otherwise V itself.
template <typename V>
struct ElementOf {
  using Type = V;
};
template <typename V>
struct ElementOf<std::vector<V>> {
  using Type = V;
};

template <typename V>
struct KeyRules {
  using Element = typename ElementOf<V>::Type;

  Presence presence;
  Range<Element> range = {};
  InQwen3 in_qwen3 = InQwen3::any;
  OptionGroup group = OptionGroup::model;
  /// Value that the option stores if it is a flag. Absent if the option takes an argument.
  std::optional<Element> flag = std::nullopt;
};

/// Returns `config` itself, or its member of type Owner.
template <class Owner, class Config>
constexpr auto& part_of(Config& config) {
  if constexpr (std::is_same_v<Owner, layers::GateVariant>) {
    return config.gate;
  } else if constexpr (std::is_same_v<Owner, SlidingLayers>) {
    return config.sliding;
  } else if constexpr (std::is_same_v<Owner, LinearLayers>) {
    return config.linear;
  } else if constexpr (std::is_same_v<Owner, Experts>) {
    return config.experts;
  } else {
    return config;
  }
}

/// Describes one field of a config or of its members. config.json, command-line options, validation and documents are
/// based on the description.
template <class Owner, typename V>
struct ConfigKey : FieldText, KeyRules<V> {
  using Value = V;
  V Owner::*member;

  constexpr ConfigKey(V Owner::*member_in, const FieldText& text, const KeyRules<V>& rules)
      : FieldText(with_key(text)), KeyRules<V>(rules), member(member_in) {}

  template <class Config>
  constexpr auto& of(Config& config) const {
    return part_of<Owner>(config).*member;
  }
};

/// Largest valid vocabulary size, width, number of heads, sequence length and window.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxExperts = 4096;
inline constexpr std::int64_t kMaxLinearHeadDim = 256;
inline constexpr Range<double> kPositive{.least = 0.0, .at_least = Bound::excluded};
inline constexpr Range<double> kNotNegative{.least = 0.0};
inline constexpr Range<double> kFinite{};
inline constexpr Range<double> kFromOneOn{.least = 1.0};

/// Lists all fields in the order of config.json. The fields of the gate, and no others, have OptionGroup::gate.
inline constexpr std::tuple kConfigKeys{
    ConfigKey(&DecoderConfig::vocab,
              {.name = "vocab", .key = "vocab_size", .option = "--vocab", .type = "N", .help = "Rows of the embedding"},
              {.presence = Presence::required, .range = {1, kMaxSize}}),
    ConfigKey(
        &DecoderConfig::dim,
        {.name = "dim", .key = "hidden_size", .option = "--dim", .type = "N", .help = "Width of the residual stream"},
        {.presence = Presence::required, .range = {1, kMaxSize}}),
    ConfigKey(&DecoderConfig::layers,
              {.name = "layers", .key = "num_hidden_layers", .option = "--layers", .type = "N", .help = "Layers"},
              {.presence = Presence::required, .range = {1, kMaxLayers}}),
    ConfigKey(&DecoderConfig::heads,
              {.name = "heads", .key = "num_attention_heads", .option = "--heads", .type = "N", .help = "Query heads"},
              {.presence = Presence::required, .range = {1, kMaxSize}}),
    ConfigKey(&DecoderConfig::kv_heads,
              {.name = "kv_heads",
               .key = "num_key_value_heads",
               .option = "--kv-heads",
               .type = "N",
               .help = "Key and value heads",
               .default_text = "half of --heads"},
              {.presence = Presence::required, .range = {1, kMaxSize}}),
    ConfigKey(&DecoderConfig::head_dim,
              {.name = "head_dim",
               .option = "--head-dim",
               .type = "N",
               .help = "Features of a head",
               .default_text = "--dim / --heads"},
              {.presence = Presence::required, .range = {1, kMaxHeadDim}}),
    ConfigKey(&DecoderConfig::ffn,
              {.name = "ffn",
               .key = "intermediate_size",
               .option = "--ffn",
               .type = "N",
               .help = "Width of the MLP",
               .default_text = "3 * --dim"},
              {.presence = Presence::required, .range = {1, kMaxSize}}),
    ConfigKey(&DecoderConfig::seq_len,
              {.name = "seq_len",
               .key = "max_position_embeddings",
               .option = "--seq-len",
               .type = "N",
               .help = "Tokens of a sequence"},
              {.presence = Presence::required, .range = {1, kMaxSize}}),
    ConfigKey(&DecoderConfig::norm_eps,
              {.name = "norm_eps", .key = "rms_norm_eps", .help = "Added to the mean square in every norm"},
              {.presence = Presence::required, .range = kPositive}),
    ConfigKey(&DecoderConfig::rope_base,
              {.name = "rope_base",
               .key = "rope_theta",
               .option = "--rope-base",
               .type = "X",
               .help = "Base of RoPE's angles"},
              {.presence = Presence::required, .range = kPositive}),
    ConfigKey(&DecoderConfig::embeddings,
              {.name = "embeddings",
               .key = "tie_word_embeddings",
               .option = "--embeddings",
               .type = "KIND",
               .help = "Matrix of the logits, the embedding's own or another"},
              {.presence = Presence::required}),
    ConfigKey(&DecoderConfig::init_std,
              {.name = "init_std",
               .key = "initializer_range",
               .option = "--init-std",
               .type = "X",
               .help = "Standard deviation of initial matrices"},
              {.presence = Presence::always, .range = kNotNegative}),
    ConfigKey(&DecoderConfig::norm,
              {.name = "norm", .key = "norm_kind", .option = "--norm", .type = "KIND", .help = "Kind of RMSNorm"},
              {.presence = Presence::headgate_always, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::norm_placement,
              {.name = "norm_placement",
               .option = "--sandwich-norm",
               .help = "Norm the outputs of attention and MLP too",
               .default_text = ""},
              {.presence = Presence::headgate_always,
               .in_qwen3 = InQwen3::default_alone,
               .group = OptionGroup::controls,
               .flag = NormPlacement::sandwich}),
    ConfigKey(&DecoderConfig::qk_norm,
              {.name = "qk_norm", .option = "--qk-norm", .type = "on|off", .help = "RMSNorm of each head's q and k"},
              {.presence = Presence::headgate_always, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_fraction,
              {.name = "rope_fraction",
               .key = "partial_rotary_factor",
               .option = "--rope-fraction",
               .type = "X",
               .help = "Share of a head's features that turn",
               .remark = "0: no RoPE"},
              {.presence = Presence::if_changed, .range = {0.0, 1.0}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&layers::GateVariant::site,
              {.name = "gate_site",
               .option = "--gate-site",
               .type = "SITE",
               .help = "What the gate acts on, g1 by default",
               .default_text = ""},
              {.presence = Presence::with_gate, .in_qwen3 = InQwen3::default_alone, .group = OptionGroup::gate}),
    ConfigKey(&layers::GateVariant::grain,
              {.name = "gate_grain",
               .help = "What has a gate of its own: a head, a feature of a head, or a feature for all heads"},
              {.presence = Presence::with_gate, .group = OptionGroup::gate}),
    ConfigKey(&layers::GateVariant::source,
              {.name = "gate_source", .option = "--gate-source", .type = "SOURCE", .help = "Where logits come from"},
              {.presence = Presence::with_gate, .group = OptionGroup::gate}),
    ConfigKey(&layers::GateVariant::fn,
              {.name = "gate_fn", .option = "--gate-fn", .type = "FN", .help = "The gate's function"},
              {.presence = Presence::with_gate, .group = OptionGroup::gate}),
    ConfigKey(&layers::GateVariant::op,
              {.name = "gate_op", .option = "--gate-op", .type = "OP", .help = "How the gate acts"},
              {.presence = Presence::with_gate, .group = OptionGroup::gate}),
    ConfigKey(&layers::GateVariant::bias,
              {.name = "gate_bias", .help = "Whether a learned vector is added to the logits"},
              {.presence = Presence::with_gate, .group = OptionGroup::gate}),
    ConfigKey(&layers::GateVariant::bias_init,
              {.name = "gate_bias_init",
               .option = "--gate-bias",
               .type = "X",
               .help = "Give the gate a learned bias, which starts at X",
               .default_text = "no bias"},
              {.presence = Presence::with_gate, .range = kFinite, .group = OptionGroup::gate}),
    ConfigKey(&layers::GateVariant::init_std,
              {.name = "gate_init_std",
               .option = "--gate-init-std",
               .type = "X",
               .help = "Standard deviation of the gate's initial matrix"},
              {.presence = Presence::with_gate, .range = kNotNegative, .group = OptionGroup::gate}),
    ConfigKey(&layers::GateVariant::output_control,
              {.name = "output_control",
               .key = "attention_output_control",
               .option = "--output-control",
               .type = "KIND",
               .help = "What acts on the attention output in place of a gate"},
              {.presence = Presence::with_gate, .in_qwen3 = InQwen3::default_alone, .group = OptionGroup::controls}),
    ConfigKey(&layers::GateVariant::sinks,
              {.name = "sinks",
               .key = "attention_sinks",
               .option = "--sinks",
               .type = "KIND",
               .help = "A logit per query head in the softmax denominator"},
              {.presence = Presence::with_gate, .in_qwen3 = InQwen3::default_alone, .group = OptionGroup::controls}),
    ConfigKey(
        &DecoderConfig::qkv_bias,
        {.name = "qkv_bias",
         .key = "attention_qkv_bias",
         .option = "--qkv-bias",
         .help = "Add a learned vector to each of q, k and v",
         .default_text = ""},
        {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone, .flag = QkvBias::learned}),
    ConfigKey(&DecoderConfig::out_bias,
              {.name = "out_bias",
               .key = "attention_out_bias",
               .help = "Whether a learned vector is added to attention's output projection"},
              {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::window,
              {.name = "window",
               .key = "attention_window",
               .option = "--window",
               .type = "N",
               .help = "Keys that a query sees, itself the last of them",
               .remark = "0: all before it"},
              {.presence = Presence::headgate_if_changed, .range = {0, kMaxSize}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_scaling,
              {.name = "rope_scaling", .key = "rope_scaling_type", .help = "How RoPE's angles are slowed down"},
              {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_factor,
              {.name = "rope_factor", .key = "rope_scaling_factor", .help = "How much RoPE's angles are slowed down"},
              {.presence = Presence::headgate_if_changed, .range = kFromOneOn, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_low_freq_factor,
              {.name = "rope_low_freq_factor",
               .help = "llama3, yarn: angles that turn less often than this in the original sequence are slowed down "
                       "wholly"},
              {.presence = Presence::headgate_if_changed, .range = kPositive, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_high_freq_factor,
              {.name = "rope_high_freq_factor",
               .help = "llama3, yarn: angles that turn more often than this are not slowed down"},
              {.presence = Presence::headgate_if_changed, .range = kPositive, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_original_seq_len,
              {.name = "rope_original_seq_len", .help = "llama3, yarn: tokens of the original sequence"},
              {.presence = Presence::headgate_if_changed, .range = {1, kMaxSize}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_truncate,
              {.name = "rope_truncate", .help = "yarn: whether it interpolates between whole indices of angles"},
              {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_attention_factor,
              {.name = "rope_attention_factor",
               .help = "yarn: factor of rotated features, if it is not 0.1 ln(rope_scaling_factor) + 1"},
              {.presence = Presence::headgate_if_changed, .range = kNotNegative, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::layer_types, {.name = "layer_types", .help = "How each layer mixes tokens"},
              {.presence = Presence::if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::attention_scale,
              {.name = "attention_scale", .help = "Factor of the scores q.k, if it is not 1 / sqrt(head_dim)"},
              {.presence = Presence::headgate_if_changed, .range = kNotNegative, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::embedding_scale, {.name = "embedding_scale", .help = "Factor of the embeddings"},
              {.presence = Presence::headgate_if_changed, .range = kPositive, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::activation,
              {.name = "activation", .key = "mlp_activation", .help = "Activation of the MLP"},
              {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&SlidingLayers::heads,
              {.name = "sliding_heads",
               .key = "sliding_num_attention_heads",
               .help = "Query heads in layers of sliding attention, if others have another number"},
              {.presence = Presence::headgate_if_changed, .range = {0, kMaxSize}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&SlidingLayers::rope_base,
              {.name = "sliding_rope_base",
               .key = "sliding_rope_theta",
               .help = "Base of RoPE's angles in layers of sliding attention, if others have another"},
              {.presence = Presence::headgate_if_changed, .range = kNotNegative, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&SlidingLayers::rope_fraction,
              {.name = "sliding_rope_fraction",
               .key = "sliding_partial_rotary_factor",
               .help = "rope_fraction with sliding_rope_base"},
              {.presence = Presence::headgate_if_changed, .range = {0.0, 1.0}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(
        &SlidingLayers::rope_scaled,
        {.name = "sliding_rope_scaled", .help = "Whether angles with sliding_rope_theta are slowed down as others are"},
        {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&LinearLayers::key_heads,
              {.name = "linear_key_heads",
               .key = "linear_num_key_heads",
               .help = "Heads of q and k in layers of linear attention"},
              {.presence = Presence::if_changed, .range = {0, kMaxSize}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&LinearLayers::value_heads,
              {.name = "linear_value_heads",
               .key = "linear_num_value_heads",
               .help = "Heads of v in layers of linear attention"},
              {.presence = Presence::if_changed, .range = {0, kMaxSize}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&LinearLayers::key_dim,
              {.name = "linear_key_dim", .key = "linear_key_head_dim", .help = "Features of such a head of q and k"},
              {.presence = Presence::if_changed, .range = {1, kMaxLinearHeadDim}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&LinearLayers::value_dim,
              {.name = "linear_value_dim", .key = "linear_value_head_dim", .help = "Features of such a head of v"},
              {.presence = Presence::if_changed, .range = {1, kMaxLinearHeadDim}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&LinearLayers::kernel,
              {.name = "linear_kernel",
               .key = "linear_conv_kernel_dim",
               .help = "Tokens that the convolution of linear attention sees"},
              {.presence = Presence::if_changed, .range = {2, 8}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&LinearLayers::beta_scale, {.name = "linear_beta_scale", .help = "Factor of the write strength beta"},
              {.presence = Presence::headgate_if_changed,
               .range = {.least = 0.0, .most = 2.0, .at_least = Bound::excluded},
               .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&LinearLayers::norm_eps,
              {.name = "linear_norm_eps", .help = "norm_eps of linear attention's output, if it is another"},
              {.presence = Presence::headgate_if_changed, .range = kNotNegative, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::count, {.name = "experts", .key = "num_experts", .help = "Experts of an MLP"},
              {.presence = Presence::if_changed, .range = {0, kMaxExperts}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::active, {.name = "experts_active", .key = "num_experts_per_tok", .help = "Experts of a token"},
              {.presence = Presence::if_changed, .range = {0, kMaxExperts}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::ffn, {.name = "expert_ffn", .key = "moe_intermediate_size", .help = "Width of an expert"},
              {.presence = Presence::if_changed, .range = {0, kMaxSize}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::shared_ffn,
              {.name = "shared_expert_ffn",
               .key = "shared_expert_intermediate_size",
               .help = "Width of the expert of all tokens"},
              {.presence = Presence::if_changed, .range = {0, kMaxSize}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::dense_layers,
              {.name = "dense_layers", .key = "num_dense_layers", .help = "Layers at the start without experts"},
              {.presence = Presence::if_changed, .range = {0, kMaxLayers}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::router, {.name = "expert_router", .help = "Scores of experts"},
              {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::renormalise,
              {.name = "expert_renormalise",
               .key = "norm_topk_prob",
               .help = "Whether the weights of a token's experts add up to 1"},
              {.presence = Presence::if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::scale,
              {.name = "expert_scale", .key = "route_scale", .help = "Factor of the weights of a token's experts"},
              {.presence = Presence::if_changed, .range = kPositive, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::shared_gate,
              {.name = "shared_expert_gate", .help = "Whether the expert of all tokens has a gate"},
              {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::biases,
              {.name = "expert_biases", .help = "Whether the router and the experts add learned vectors"},
              {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::activation,
              {.name = "expert_activation", .help = "Activation of the experts that a router chooses"},
              {.presence = Presence::headgate_if_changed, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::limits,
              {.name = "expert_limits",
               .key = "swiglu_limits",
               .help = "Bound of experts' activations in each layer, 0 for none"},
              {.presence = Presence::if_changed, .range = kNotNegative, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&Experts::shared_limits,
              {.name = "shared_expert_limits",
               .key = "swiglu_limits_shared",
               .help = "The same for the expert of all tokens"},
              {.presence = Presence::if_changed, .range = kNotNegative, .in_qwen3 = InQwen3::default_alone})};

}  // namespace headgate::models

namespace headgate {

// Defines short words for the values of some fields. Command-line options accept them beside the words of config.json.

template <>
struct OptionWords<layers::QkNorm> {
  static constexpr std::array<Word<layers::QkNorm>, 2> kAll{
      {{layers::QkNorm::per_head, "on"}, {layers::QkNorm::none, "off"}}};
};

template <>
struct OptionWords<layers::OutputControl> {
  static constexpr std::array<Word<layers::OutputControl>, 3> kAll{
      {{layers::OutputControl::none, "none"},
       {layers::OutputControl::head_rmsnorm, "head_rmsnorm"},
       {layers::OutputControl::silu, "silu"}}};
};

template <>
struct OptionWords<layers::SinkKind> {
  static constexpr std::array<Word<layers::SinkKind>, 3> kAll{{{layers::SinkKind::none, "none"},
                                                               {layers::SinkKind::learned, "learned"},
                                                               {layers::SinkKind::off_by_one, "off_by_one"}}};
};

}  // namespace headgate
