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

// Measures how important heads are: the change of the loss if a head's gate has one fixed value for all tokens.

namespace headgate::xray {

enum class Override { closed, open, mean };

/// A kind of override. It replaces a head's gated output, which is the input of W_o, by the value of `formula`.
/// `figure` describes the resulting change of the loss.
/// In the formula, o is the attention output of the head and g its gate.
/// For linear attention, o is the normalised output of a value head and g = silu(z) its output gate.
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

/// Part of the model that each pass overrides: a single head, or all heads of a layer.
enum class OverriddenPart { heads, layers };

/// Returns why attention layers with this gate do not support the override, or an empty string if they do.
std::string reason_left_out(const layers::GateVariant& gate, Override kind);
/// Returns why no layer of the model supports the override, or an empty string if a layer does.
/// Layers of linear attention support `closed` and `mean`, which replace the output gate of these layers.
std::string reason_left_out(const models::DecoderConfig& config, Override kind);

/// Returns the overrides that a layer supports.
std::vector<const OverrideRow*> overrides_of(const models::DecoderConfig& config, std::int64_t layer);
/// Returns the overrides that at least one layer of the model supports.
std::vector<const OverrideRow*> overrides_of(const models::DecoderConfig& config);

/// Describes a run of override_parts(). The changes of the loss are in the argument `report` of override_parts().
struct OverrideRun {
  OverriddenPart part = OverriddenPart::heads;
  std::int64_t tokens = 0;  ///< number of tokens, from the beginning of the text
  std::int64_t passes = 0;  ///< number of passes through the model; equals planned_passes()
  double loss = 0.0;        ///< loss of the same tokens without an override
};

/// Returns the number of passes that override_parts() makes through the model.
/// The first pass runs all layers without an override.
/// Each override of each head or layer takes one more pass, which begins at the overridden layer.
std::int64_t planned_passes(const models::DecoderConfig& config, OverriddenPart part);

/// Returns how many bytes override_parts() allocates, without those of its decoder.
std::size_t override_bytes(const models::DecoderConfig& config, std::int64_t tokens);

/// Runs the model once for each override of each head or layer, and computes the change of the loss.
/// Stores each change in `report`: in the row of the head or layer, as the value of OverrideRow::figure.
/// Stores no value if the layer does not support the override.
/// `tokens`: one sequence. `targets`: as for Decoder::loss(). Calls progress(fraction) after each pass.
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
