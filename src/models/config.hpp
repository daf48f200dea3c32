// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "core/words.hpp"
#include "layers/gate_variant.hpp"
#include "layers/gated_attention.hpp"
#include "layers/rmsnorm.hpp"

namespace headgate::models {

/// Whether the logits are read by the embedding table itself or by a matrix of their own.
enum class Embeddings : std::int32_t { tied, separate };

using layers::QkNorm;

/// pre: norms in front of attention and MLP only. sandwich: their outputs are normed too, before the residual addition.
enum class NormPlacement : std::int32_t { pre, sandwich };

/// A decoder-only transformer, as in Qwen3: pre-norm RMSNorm, grouped-query attention, SwiGLU, no biases.
struct DecoderConfig {
  std::int64_t vocab = 256;
  std::int64_t dim = 256;
  std::int64_t layers = 6;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 4;   ///< heads is a multiple of it
  std::int64_t head_dim = 32;  ///< 1 to 512
  std::int64_t ffn = 768;
  std::int64_t seq_len = 256;  ///< the longest sequence: rows of the RoPE tables

  layers::NormKind norm = layers::NormKind::plain;
  double norm_eps = 1e-6;
  NormPlacement norm_placement = NormPlacement::pre;
  QkNorm qk_norm = QkNorm::per_head;
  Embeddings embeddings = Embeddings::tied;

  double rope_base = 10000.0;
  double rope_fraction = 1.0;  ///< share of head_dim that turns (Hugging Face: partial_rotary_factor); 0: no RoPE
  double init_std = 0.02;      ///< of every matrix but the gate's: N(0, init_std)

  layers::GateVariant gate;

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

/// What messages call the fields of a config: by default as they are called here; otherwise as a file or the options of
/// a command do.
struct FieldNames {
  const char* where = "config: ";  ///< in front of every message
  const char* vocab = "vocab";
  const char* dim = "dim";
  const char* layers = "layers";
  const char* heads = "heads";
  const char* kv_heads = "kv_heads";
  const char* head_dim = "head_dim";
  const char* ffn = "ffn";
  const char* seq_len = "seq_len";
  const char* norm_eps = "norm_eps";
  const char* rope_base = "rope_base";
  const char* rope_fraction = "rope_fraction";
  const char* init_std = "init_std";
};

/// Throws Error, one line, naming the field and the values that do not fit. Bounds every size, so that products of
/// sizes of a config that passed do not overflow 63 bits.
void validate(const DecoderConfig& config, const FieldNames& names = {});

/// Features of a head that RoPE turns: rope_fraction · head_dim, rounded down to an even number.
std::int64_t rotary_dim(const DecoderConfig& config);

/// Trainable numbers; tied embeddings count once.
std::int64_t parameter_count(const DecoderConfig& config);

/// The same model without a gate, control, sink or sandwich norm.
DecoderConfig baseline_of(DecoderConfig config);

/// `config` with its ffn changed, in steps of 4, to come closest to the baseline's parameter count at config.ffn.
/// Throws Error when the gate costs more than the whole MLP.
DecoderConfig match_params(const DecoderConfig& config);

/// Multiply-adds counted twice, of a training step (forward and backward) on `batch` sequences of `seq` tokens:
/// 6 · matrix parameters · tokens, the embedding gather left out, and 6 · layers · heads · head_dim · 2 · pairs, pairs
/// the causal (query, key) pairs.
double training_flops(const DecoderConfig& config, std::int64_t batch, std::int64_t seq);

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

}  // namespace headgate
