// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>

#include "library/core/range.hpp"
#include "library/core/rows.hpp"
#include "library/core/words.hpp"
#include "models/layers/attention_buffers.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/layers/rmsnorm.hpp"

namespace headgate::models {

/// Whether the logits are computed with the embedding table itself or with a separate matrix.
enum class Embeddings : std::int32_t { tied, separate };

using layers::QkNorm;
using layers::QkvBias;

/// pre: norms before attention and MLP only. sandwich: also norms of their outputs, before the residual addition.
enum class NormPlacement : std::int32_t { pre, sandwich };

/// Describes a decoder-only transformer such as Llama, Mistral, Qwen2 and Qwen3: pre-norm RMSNorm, grouped-query
/// attention, SwiGLU, no biases except those of q, k and v.
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
  std::int64_t window = 0;  ///< keys that a query sees, including its own, the last of them; 0: all before it
  layers::RopeScalingKind rope_scaling = layers::RopeScalingKind::none;
  double rope_factor = 1.0;
  double rope_low_freq_factor = 1.0;
  double rope_high_freq_factor = 4.0;
  std::int64_t rope_original_seq_len = 8192;

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

/// How messages name a field: by its name in code, its key of config.json, or its option.
enum class NamesIn { code, file, command_line };

/// Throws Error, one line, naming the field and the values that do not fit. Bounds every size, so that products of
/// sizes of a valid config do not overflow 63 bits.
void validate(const DecoderConfig& config, NamesIn names = NamesIn::code);

/// Returns whether `transformers` computes the same as this decoder when it reads the config as Qwen3's.
bool is_qwen3(const DecoderConfig& config);

/// Returns how many features of a head RoPE rotates: rope_fraction · head_dim, rounded down to an even number.
std::int64_t rotary_dim(const DecoderConfig& config);

/// Returns the number of parameters; tied embeddings count once.
std::int64_t parameter_count(const DecoderConfig& config);

/// Returns the same model without a gate, control, sink or sandwich norm.
DecoderConfig baseline_of(DecoderConfig config);

/// Changes ffn, in steps of 4, to come as close as possible to the baseline's parameter count at config.ffn. Throws
/// Error if the gate has more parameters than the whole MLP.
DecoderConfig match_params(const DecoderConfig& config);

/// Returns the FLOPs, two a multiply-add, of a training step (forward and backward) on `batch` sequences of `seq`
/// tokens: 6 · matrix parameters · tokens, without the embedding gather, plus 6 · layers · heads · head_dim · 2 ·
/// pairs, where pairs is the number of causal (query, key) pairs.
double training_flops(const DecoderConfig& config, std::int64_t batch, std::int64_t seq);

// --- the rows ----------------------------------------------------------------------------------------------------

/// When config.json contains a key. A file may lack all but the required keys; a missing key has the field's default.
enum class Presence {
  required,
  always,        ///< written always
  beyond_qwen3,  ///< written if is_qwen3 is false
  not_default,   ///< written if the field differs from its default
  with_gate      ///< written if any part of the gate differs from its default
};

/// Whether Qwen3 models may have any value of a field or its default only.
enum class InQwen3 { any, default_alone };

/// The heading in --help that lists a field's option.
enum class OptionGroup { model, gate, controls };

template <typename V>
struct KeyRules {
  Presence presence;
  Range<V> range = {};
  InQwen3 in_qwen3 = InQwen3::any;
  OptionGroup group = OptionGroup::model;
  std::optional<V> flag = std::nullopt;  ///< the option takes no value, and means this one
};

/// Describes one field of a config, or of its gate, for files, the command line, checks and documents.
template <class Owner, typename V>
struct ConfigKey : FieldText, KeyRules<V> {
  using Value = V;
  V Owner::*member;

  constexpr ConfigKey(V Owner::*member_in, const FieldText& text, const KeyRules<V>& rules)
      : FieldText(with_key(text)), KeyRules<V>(rules), member(member_in) {}

  template <class Config>
  constexpr auto& of(Config& config) const {
    if constexpr (std::is_same_v<Owner, layers::GateVariant>) {
      return (config.gate.*member);
    } else {
      return (config.*member);
    }
  }
};

inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;  // of vocab, dim, ffn, heads and seq_len
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr Range<double> kPositive{.least = 0.0, .at_least = Bound::excluded};
inline constexpr Range<double> kNotNegative{.least = 0.0};
inline constexpr Range<double> kFinite{};
inline constexpr Range<double> kFromOneOn{.least = 1.0};

/// Lists the fields in the order of config.json. Only parts of the gate have OptionGroup::gate.
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
              {.presence = Presence::beyond_qwen3, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::norm_placement,
              {.name = "norm_placement",
               .option = "--sandwich-norm",
               .help = "Norm the outputs of attention and MLP too",
               .default_text = ""},
              {.presence = Presence::beyond_qwen3,
               .in_qwen3 = InQwen3::default_alone,
               .group = OptionGroup::controls,
               .flag = NormPlacement::sandwich}),
    ConfigKey(&DecoderConfig::qk_norm,
              {.name = "qk_norm", .option = "--qk-norm", .type = "on|off", .help = "RMSNorm of each head's q and k"},
              {.presence = Presence::beyond_qwen3, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_fraction,
              {.name = "rope_fraction",
               .key = "partial_rotary_factor",
               .option = "--rope-fraction",
               .type = "X",
               .help = "Share of a head's features that turn",
               .remark = "0: no RoPE"},
              {.presence = Presence::not_default, .range = {0.0, 1.0}, .in_qwen3 = InQwen3::default_alone}),
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
    ConfigKey(&DecoderConfig::qkv_bias,
              {.name = "qkv_bias",
               .key = "attention_qkv_bias",
               .option = "--qkv-bias",
               .help = "Add a learned vector to each of q, k and v",
               .default_text = ""},
              {.presence = Presence::not_default, .in_qwen3 = InQwen3::default_alone, .flag = QkvBias::learned}),
    ConfigKey(&DecoderConfig::window,
              {.name = "window",
               .key = "attention_window",
               .option = "--window",
               .type = "N",
               .help = "Keys that a query sees, itself the last of them",
               .remark = "0: all before it"},
              {.presence = Presence::not_default, .range = {0, kMaxSize}, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_scaling,
              {.name = "rope_scaling", .key = "rope_scaling_type", .help = "How RoPE's angles are slowed down"},
              {.presence = Presence::not_default, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_factor,
              {.name = "rope_factor", .key = "rope_scaling_factor", .help = "How much RoPE's angles are slowed down"},
              {.presence = Presence::not_default, .range = kFromOneOn, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_low_freq_factor,
              {.name = "rope_low_freq_factor",
               .help = "llama3: angles that turn less often than this in the original sequence are slowed down wholly"},
              {.presence = Presence::not_default, .range = kPositive, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(
        &DecoderConfig::rope_high_freq_factor,
        {.name = "rope_high_freq_factor", .help = "llama3: angles that turn more often than this are not slowed down"},
        {.presence = Presence::not_default, .range = kPositive, .in_qwen3 = InQwen3::default_alone}),
    ConfigKey(&DecoderConfig::rope_original_seq_len,
              {.name = "rope_original_seq_len", .help = "llama3: tokens of the original sequence"},
              {.presence = Presence::not_default, .range = {1, kMaxSize}, .in_qwen3 = InQwen3::default_alone})};

}  // namespace headgate::models

namespace headgate {

template <>
struct Words<models::Embeddings> {
  static constexpr std::array<Word<models::Embeddings>, 2> kAll{
      {{models::Embeddings::tied, "tied"}, {models::Embeddings::separate, "separate"}}};
};

template <>
struct Words<models::NormPlacement> {
  static constexpr std::array<Word<models::NormPlacement>, 2> kAll{
      {{models::NormPlacement::pre, "pre"}, {models::NormPlacement::sandwich, "sandwich"}}};
};

// Where the command line has shorter words than the file.

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
