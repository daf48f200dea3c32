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

// What a head is worth: how the loss changes where its gate is held at one value for all tokens.

namespace headgate::xray {

enum class Override { closed, open, mean };

/// What a head, whose attention output is o and whose gate is g, gives to W_o instead; and the figure of it.
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

/// What is overridden at a time: one head, or all heads of a layer.
enum class OverriddenPart { heads, layers };

/// Why models with this gate do not have the override, a clause; empty where they do.
std::string reason_left_out(const layers::GateVariant& gate, Override kind);

/// Those that models with this gate have.
std::vector<const OverrideRow*> overrides_of(const layers::GateVariant& gate);

/// What was overridden. The changes of the loss stand in the report.
struct OverrideRun {
  OverriddenPart part = OverriddenPart::heads;
  std::int64_t tokens = 0;  ///< the first of the text
  std::int64_t passes = 0;  ///< planned_passes
  double loss = 0.0;        ///< of these tokens, without an override
};

/// One over all layers, and one from the layer on for each part and override.
std::int64_t planned_passes(const models::DecoderConfig& config, OverriddenPart part);

/// What override_parts takes beside its decoder.
std::size_t override_bytes(const models::DecoderConfig& config, std::int64_t tokens);

/// Runs the model on one sequence, targets as in Decoder::loss, with each override of each part, and sets their figures
/// in the report's rows of heads or layers; an override that the model lacks has none. progress(fraction).
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
