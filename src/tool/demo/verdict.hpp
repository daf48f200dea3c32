// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "tool/demo/spread.hpp"

// Puts the demo's figures into sentences. All functions are pure: the wording depends only on the numbers.

namespace headgate::demo {

/// The effect of a gate on the attention to BOS at tokens with nothing to copy, compared with the model without a gate.
enum class SinkEffect {
  clear,       ///< at most half of the attention to BOS remains, or at most half of it passes the gate
  small,       ///< the gate lowers the attention to BOS by more than kSinkNoise
  none,        ///< the gate changes the attention to BOS by at most kSinkNoise
  opposite,    ///< the gate raises the attention to BOS by more than kSinkNoise
  no_sink,     ///< the model without a gate has no sink: its attention to BOS is below metrics::kSinkThreshold
  not_learnt,  ///< one of the models cannot copy: its loss after triggers is at least kNotLearnt nats
};

inline constexpr double kSinkNoise = 0.05;  ///< smaller differences between attention shares count as none
inline constexpr double kNotLearnt = 0.5;   ///< loss after a trigger, in nats; copying costs almost 0, guessing about 3

/// Classifies the effect from the figures by trigger (metrics::Scope::triggers). For a gated model it uses the
/// attention that passes the gate, if known: training does not constrain attention behind a closed gate.
SinkEffect sink_effect(const metrics::FigureRow& baseline, const metrics::FigureRow& gated);

struct NamedFigures {
  std::string name;  ///< "headwise"
  metrics::FigureRow figures;
};

struct NamedSpread {
  std::string name;
  Spread figures;
};

/// Returns a few sentences: first on the model without a gate, then on each gated model.
std::string backcopy_verdict(const Spread& baseline, const std::vector<NamedSpread>& gated);

inline constexpr double kLossNoise = 0.01;        ///< nats; smaller differences between losses count as none
inline constexpr double kActivationNoise = 1.25;  ///< activations within this factor count as equal

/// Returns sentences that compare loss, sinks and activations of gated models with the model without a gate, and say
/// how conclusive that is.
std::string text_verdict(const metrics::FigureRow& baseline, const std::vector<NamedFigures>& gated,
                         std::int64_t tokens);

}  // namespace headgate::demo
