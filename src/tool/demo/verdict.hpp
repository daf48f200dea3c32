// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "tool/demo/spread.hpp"

// What the demo says of the figures that it measured. Pure functions: the wording follows from the numbers.

namespace headgate::demo {

/// The effect of a gate on the attention to BOS where there is nothing to copy, compared with the model without a gate.
enum class SinkEffect {
  clear,       ///< at most half of the attention remains, or passes the gate
  small,       ///< it falls by more than kSinkNoise
  none,        ///< within kSinkNoise
  opposite,    ///< it rises by more than kSinkNoise
  no_sink,     ///< neither model has a sink: attention to BOS is below metrics::kSinkThreshold
  not_learnt,  ///< one of the two cannot copy: a loss after triggers of kNotLearnt nats or more
};

inline constexpr double kSinkNoise = 0.05;  ///< a smaller difference of attention shares counts as none
inline constexpr double kNotLearnt = 0.5;   ///< nats after a trigger; copying costs almost 0, guessing about 3

/// Figures of a model on a task with triggers, by metrics::Scope::triggers. Of a gated model what passes the gate
/// counts, where that is known: attention behind a closed gate does nothing, and stays where it was.
SinkEffect sink_effect(const metrics::FigureRow& baseline, const metrics::FigureRow& gated);

struct NamedFigures {
  std::string name;  ///< "headwise"
  metrics::FigureRow figures;
};

struct NamedSpread {
  std::string name;
  Spread figures;
};

/// A few sentences: the model without a gate, then each gated one.
std::string backcopy_verdict(const Spread& baseline, const std::vector<NamedSpread>& gated);

inline constexpr double kLossNoise = 0.01;        ///< nats; a smaller difference of losses counts as none
inline constexpr double kActivationNoise = 1.25;  ///< activations within this factor count as equal

/// Loss, sinks and activations of whole models, gated ones against the one without a gate, and how much that proves.
std::string text_verdict(const metrics::FigureRow& baseline, const std::vector<NamedFigures>& gated,
                         std::int64_t tokens);

}  // namespace headgate::demo
