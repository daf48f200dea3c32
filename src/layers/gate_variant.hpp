// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "headgate/attention.hpp"

// Where a layer is gated and how: one small value, with a name. h is the layer's input after its pre-norm, the tensor
// that q, k and v are projected from; the gate logits are z = h·Wz (+ bias).

namespace headgate::layers {

/// What the gate acts on. g1: the attention output, per query head. g2, g3, g4: the v, k, q projection (per key/value
/// head for v and k), before QK-norm and RoPE. g5: the output of W_o, the layer's dim channels.
enum class GateSite : std::int32_t { none, g1, g2, g3, g4, g5 };

/// headwise: one gate per (token, head); g5: one per token. elementwise: one per (token, head, feature); g5: one per
/// (token, channel). head_shared: elementwise logits, g = mean over heads of fn(z), one gate per (token, feature).
enum class GateGrain : std::int32_t { headwise, elementwise, head_shared };

/// input: z = h·Wz. parameter: z is a learned (heads, features) tensor that starts at zero, the same for every token.
enum class GateSource : std::int32_t { input, parameter };

/// learned: a vector added to z = h·Wz; it starts at GateVariant::bias_init.
enum class GateBias : std::int32_t { none, learned };

/// What acts on the attention output instead of a gate. head_rmsnorm: RMSNorm per head, one weight of head_dim for all
/// heads. silu: silu(y), without parameters.
enum class OutputControl : std::int32_t { none, head_rmsnorm, silu };

/// A logit per query head in the softmax denominator. learned: a parameter that starts at zero. off_by_one: zero.
enum class SinkKind : std::int32_t { none, learned, off_by_one };

struct GateVariant {
  GateSite site = GateSite::none;
  GateGrain grain = GateGrain::elementwise;
  GateSource source = GateSource::input;
  GateFn fn = GateFn::sigmoid;
  GateOp op = GateOp::mul;
  GateBias bias = GateBias::none;
  double bias_init = 0.0;
  double init_std = 0.02;  ///< of Wz: N(0, init_std)
  OutputControl output_control = OutputControl::none;
  SinkKind sinks = SinkKind::none;

  friend bool operator==(const GateVariant&, const GateVariant&) = default;
};

inline bool has_gate(const GateVariant& variant) { return variant.site != GateSite::none; }

/// Throws Error, one line, on a combination that has no meaning: a gate without a function, head_shared at g5, a
/// control together with a gate, a bias without Wz. Messages begin with the key that config.json has for the part.
void validate(const GateVariant& variant);

/// The parts that differ from a plain layer, joined by '-': "none", "g1-elementwise-sigmoid-mul",
/// "g1-headwise-sigmoid-mul-parameter", "g2-head_shared-silu-add-bias", "head_rmsnorm", "off_by_one",
/// "g1-headwise-sigmoid-mul-learned_sinks". Numbers (bias_init, init_std) are not part of the name.
std::string gate_name(const GateVariant& variant);

/// Reads what gate_name writes, in any order, with site g1, elementwise, sigmoid and mul where a part is missing:
/// "headwise" is a headwise sigmoid gate at g1. Throws Error with the words that exist.
GateVariant parse_gate(std::string_view name);

// The words of the parts. Each parser throws Error with the list of words.
std::string_view word_of(GateSite value);
std::string_view word_of(GateGrain value);
std::string_view word_of(GateSource value);
std::string_view word_of(GateFn value);
std::string_view word_of(GateOp value);
std::string_view word_of(GateBias value);
std::string_view word_of(OutputControl value);
std::string_view word_of(SinkKind value);

/// Enum is one of those above: parse_word<GateSite>("gate site", "g1"). `what` names the thing in the error.
template <typename Enum>
Enum parse_word(std::string_view what, std::string_view word);

}  // namespace headgate::layers
