// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "tool/demo/spread.hpp"

// Puts the demo's figures into sentences, with pure functions: the wording follows only from the numbers.

namespace headgate::demo {

/// The effect of a gate on the attention to BOS at tokens with nothing to copy, compared with the model without a gate.
enum class SinkEffect {
  clear,       ///< at most half of the attention remains, or at most half of it passes the gate
  small,       ///< it falls by more than kSinkNoise
  none,        ///< within kSinkNoise
  opposite,    ///< it rises by more than kSinkNoise
  no_sink,     ///< neither model has a sink: attention to BOS is below metrics::kSinkThreshold
  not_learnt,  ///< one of the two cannot copy: its loss after triggers is kNotLearnt nats or more
};

inline constexpr double kSinkNoise = 0.05;  ///< smaller differences of attention shares count as none
inline constexpr double kNotLearnt = 0.5;   ///< nats after a trigger; copying costs almost 0, guessing about 3

/// Classifies the effect from figures by metrics::Scope::triggers. For a gated model, counts what passes the gate, if
/// it is known: training does not constrain attention behind a closed gate.
SinkEffect sink_effect(const metrics::FigureRow& baseline, const metrics::FigureRow& gated);

struct NamedFigures {
  std::string name;  ///< "headwise"
  metrics::FigureRow figures;
};

struct NamedSpread {
  std::string name;
  Spread figures;
};

/// Returns a few sentences: on the model without a gate, then on each gated one.
std::string backcopy_verdict(const Spread& baseline, const std::vector<NamedSpread>& gated);

inline constexpr double kLossNoise = 0.01;        ///< nats; smaller differences of losses count as none
inline constexpr double kActivationNoise = 1.25;  ///< activations within this factor count as equal

/// Compares loss, sinks and activations of gated models with the one without a gate, and says how much that proves.
std::string text_verdict(const metrics::FigureRow& baseline, const std::vector<NamedFigures>& gated,
                         std::int64_t tokens);

}  // namespace headgate::demo
