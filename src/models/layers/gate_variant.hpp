// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "library/core/gate_functions.hpp"
#include "library/core/words.hpp"
#include "models/layers/gate_site.hpp"

// Describes the gate of a layer by a GateVariant, and converts a GateVariant to a name and back. In comments, h is the
// layer's input after its pre-norm, from which q, k and v are projected. The gate logits are z = h·Wz (+ bias).

namespace headgate::layers {

/// Selects the granularity of a gate.
/// - headwise: one gate per (token, head); at g5, one per token.
/// - elementwise: one gate per (token, head, feature); at g5, one per (token, channel).
/// - head_shared: one gate per (token, feature), the mean over heads of fn(z), with elementwise logits z.
enum class GateGrain : std::int32_t { headwise, elementwise, head_shared };

/// Selects the source of the gate logits z.
/// - input: z = h·Wz, computed from the layer's input h.
/// - parameter: z is a learned (heads, features) tensor, the same for every token, that starts at zero.
enum class GateSource : std::int32_t { input, parameter };

/// Returns a description of the source of the logits, for help texts.
constexpr std::string_view explanation_of(GateSource source) {
  return source == GateSource::input ? "the layer's input" : "learned, the same for every token";
}

/// Selects a bias of the gate logits. learned: adds a learned vector to z = h·Wz, which starts at
/// GateVariant::bias_init.
enum class GateBias : std::int32_t { none, learned };

/// Selects an operation on the attention output y that replaces the gate, as a control in experiments.
/// - head_rmsnorm: RMSNorm per head, with one weight of head_dim numbers for all heads.
/// - silu: silu(y), without parameters.
enum class OutputControl : std::int32_t { none, head_rmsnorm, silu };

/// Selects an attention sink: an extra logit per query head in the softmax denominator.
/// - learned: the logit is a parameter that starts at zero.
/// - off_by_one: the logit is zero.
enum class SinkKind : std::int32_t { none, learned, off_by_one };

struct GateVariant {
  GateSite site = GateSite::none;
  GateGrain grain = GateGrain::elementwise;
  GateSource source = GateSource::input;
  GateFn fn = GateFn::sigmoid;
  GateOp op = GateOp::mul;
  GateBias bias = GateBias::none;
  double bias_init = 0.0;
  double init_std = 0.02;  ///< standard deviation of the initial Wz: N(0, init_std)
  OutputControl output_control = OutputControl::none;
  SinkKind sinks = SinkKind::none;

  friend bool operator==(const GateVariant&, const GateVariant&) = default;
};

inline bool has_gate(const GateVariant& variant) { return variant.site != GateSite::none; }

// Three functions tell which tensor the gate acts on. At most one of them returns true.
// - gates_attention(): the attention output; the attention kernel applies the gate.
// - gates_projection(): q, k or v.
// - gates_layer_output(): the layer's output.
inline bool gates_attention(const GateVariant& variant) { return variant.site == GateSite::g1; }

/// Returns whether attention can skip query rows with a closed gate, which requires a gate that multiplies the
/// attention output.
inline bool can_skip_attention(const GateVariant& variant) {
  return gates_attention(variant) && variant.fn != GateFn::none && variant.op == GateOp::mul;
}
inline bool gates_projection(const GateVariant& variant) {
  return has_gate(variant) && find_site(variant.site)->column != nullptr;
}
inline bool gates_layer_output(const GateVariant& variant) { return variant.site == GateSite::g5; }

/// Returns whether all heads share one gate, the mean of their gates.
inline bool shares_gate(const GateVariant& variant) {
  return has_gate(variant) && variant.grain == GateGrain::head_shared;
}

/// Throws Error if parts of the variant contradict each other:
/// - a gate without a function
/// - head_shared at g5
/// - an output_control together with a gate
/// - a learned bias of the logits without the matrix Wz
///
/// The message is one line that begins with the config.json key of the invalid part. Does not check the numbers
/// bias_init and init_std.
void validate(const GateVariant& variant);

/// Returns the name of a gate variant: the parts that differ from a plain layer, joined by '-'. Examples: "none",
/// "g1-elementwise-sigmoid-mul", "g1-headwise-sigmoid-mul-parameter", "g2-head_shared-silu-add-bias", "head_rmsnorm",
/// "off_by_one", "g1-headwise-sigmoid-mul-learned_sinks". Numbers (bias_init, init_std) are not part of the name.
std::string gate_name(const GateVariant& variant);

/// Parses a name in the format of gate_name(), with parts in any order. Missing parts default to g1, elementwise,
/// sigmoid and mul: "headwise" is a headwise sigmoid gate at g1. Throws Error with the known words if a part is
/// unknown, or if two parts are of the same kind. Also throws the errors of validate().
GateVariant parse_gate(std::string_view name);

}  // namespace headgate::layers

namespace headgate {

// Names of enum values in config.json, in names of gate variants and in options.

template <>
struct Words<layers::GateGrain> {
  static constexpr std::array<Word<layers::GateGrain>, 3> kAll{{{layers::GateGrain::headwise, "headwise"},
                                                                {layers::GateGrain::elementwise, "elementwise"},
                                                                {layers::GateGrain::head_shared, "head_shared"}}};
};

template <>
struct Words<layers::GateSource> {
  static constexpr std::array<Word<layers::GateSource>, 2> kAll{
      {{layers::GateSource::input, "input"}, {layers::GateSource::parameter, "parameter"}}};
};

template <>
struct Words<layers::GateBias> {
  static constexpr std::array<Word<layers::GateBias>, 2> kAll{
      {{layers::GateBias::none, "none"}, {layers::GateBias::learned, "bias"}}};
};

template <>
struct Words<layers::OutputControl> {
  static constexpr std::array<Word<layers::OutputControl>, 3> kAll{
      {{layers::OutputControl::none, "none"},
       {layers::OutputControl::head_rmsnorm, "head_rmsnorm"},
       {layers::OutputControl::silu, "output_silu"}}};
};

template <>
struct Words<layers::SinkKind> {
  static constexpr std::array<Word<layers::SinkKind>, 3> kAll{{{layers::SinkKind::none, "none"},
                                                               {layers::SinkKind::learned, "learned_sinks"},
                                                               {layers::SinkKind::off_by_one, "off_by_one"}}};
};

}  // namespace headgate
