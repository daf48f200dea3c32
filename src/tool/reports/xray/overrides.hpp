// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/words.hpp"
#include "models/decoder/decoder.hpp"
#include "models/evaluate/evaluator.hpp"
#include "models/evaluate/figure.hpp"
#include "models/layers/gate_variant.hpp"

// Measures what a head is worth: how the loss changes if its gate has one value for all tokens.

namespace headgate::xray {

enum class Override { closed, open, mean };

/// Describes an override: what a head with attention output o and gate g passes to W_o instead, and its figure. Of
/// linear attention, o is the normed output of a value head and g = silu(z) its output gate.
struct OverrideRow {
  Override value;
  std::string_view word, formula;
  metrics::Figure figure;
};

inline constexpr std::array kOverrides{
    OverrideRow{Override::closed,
                "closed",
                "0",
                {.key = "loss_change_when_closed",
                 .meaning = "How many nats a token the loss rises where the head's output, or that of all heads of the "
                            "layer, is 0: above 0, what it reads is needed."}},
    OverrideRow{Override::open,
                "open",
                "o",
                {.key = "loss_change_when_open",
                 .meaning = "How many nats a token the loss rises where the head's gate, or that of all heads of the "
                            "layer, is 1: above 0, closing it is needed."}},
    OverrideRow{Override::mean,
                "mean",
                "mean(g) o",
                {.key = "loss_change_at_mean_gate",
                 .meaning = "How many nats a token the loss rises where the head's gate, or that of all heads of the "
                            "layer, is its mean over the text: above 0, it matters that the gate depends on the "
                            "token."}},
};

/// What is overridden at once: one head, or all heads of a layer.
enum class OverriddenPart { heads, layers };

/// Returns a clause that says why layers of attention with this gate do not have the override; empty if they do.
std::string reason_left_out(const layers::GateVariant& gate, Override kind);
/// Returns a clause that says why no layer of the model has the override; empty if some layer has it. Linear attention
/// has closed and mean, of its output gate.
std::string reason_left_out(const models::DecoderConfig& config, Override kind);

/// Returns the overrides that a layer has.
std::vector<const OverrideRow*> overrides_of(const models::DecoderConfig& config, std::int64_t layer);
/// Returns the overrides that some layer of the model has.
std::vector<const OverrideRow*> overrides_of(const models::DecoderConfig& config);

/// Says what was overridden. The report holds the changes of the loss.
struct OverrideRun {
  OverriddenPart part = OverriddenPart::heads;
  std::int64_t tokens = 0;  ///< tokens used, from the beginning of the text
  std::int64_t passes = 0;  ///< equals planned_passes
  double loss = 0.0;        ///< loss of these tokens without an override
};

/// Counts one pass over all layers, and one from its layer on for each part and override.
std::int64_t planned_passes(const models::DecoderConfig& config, OverriddenPart part);

/// Returns the bytes that override_parts allocates beside its decoder.
std::size_t override_bytes(const models::DecoderConfig& config, std::int64_t tokens);

/// Runs the model on one sequence, with targets as in Decoder::loss, once for each override of each part. Sets their
/// figures in the report's rows of heads or layers; an override that the layer lacks has none. Calls
/// progress(fraction).
OverrideRun override_parts(metrics::Report& report, const models::DecoderConfig& config, const float* parameters,
                           const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                           OverriddenPart part, const ExecutionContext& context,
                           const std::function<void(double)>& progress);

}  // namespace headgate::xray

namespace headgate {

template <>
struct Words<xray::Override> {
  static constexpr auto kAll = xray::kOverrides;
};

template <>
struct Words<xray::OverriddenPart> {
  static constexpr std::array<Word<xray::OverriddenPart>, 2> kAll{
      {{xray::OverriddenPart::heads, "heads"}, {xray::OverriddenPart::layers, "layers"}}};
};

}  // namespace headgate
