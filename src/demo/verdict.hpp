// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "metrics/figure.hpp"
#include "metrics/sink_rate.hpp"

// What the demo says of the figures that it measured. Pure functions: the wording follows from the numbers.

namespace headgate::demo {

/// What a gate does to the attention that rests on BOS where there is nothing to copy, against the model without one.
enum class SinkEffect {
  clear,     ///< at most half of it is left
  small,     ///< it falls by more than kSinkNoise
  none,      ///< within kSinkNoise
  opposite,  ///< it rises by more than kSinkNoise
  no_sink,   ///< the model without a gate does not rest on BOS (below metrics::kSinkThreshold), nor does the gated one
  not_learnt,  ///< one of the two cannot copy: a loss after triggers of kNotLearnt nats or more
};

inline constexpr double kSinkNoise = 0.05;  ///< shares of attention that differ by less are called alike
inline constexpr double kNotLearnt = 0.5;   ///< nats after a trigger; copying costs next to none, guessing about three

/// Figures of a model on a task with triggers, by metrics::Scope::triggers.
SinkEffect sink_effect(const metrics::FigureRow& baseline, const metrics::FigureRow& gated);

struct NamedFigures {
  std::string name;  ///< "headwise"
  metrics::FigureRow figures;
};

/// A few sentences: the model without a gate, then each gated one.
std::string backcopy_verdict(const metrics::FigureRow& baseline, const std::vector<NamedFigures>& gated);

inline constexpr double kLossNoise = 0.01;        ///< nats; losses that differ by less are called alike
inline constexpr double kActivationNoise = 1.25;  ///< activations within this factor are called alike

/// Loss, sinks and activations of whole models, gated ones against the one without a gate, and how much that proves.
std::string text_verdict(const metrics::FigureRow& baseline, const std::vector<NamedFigures>& gated,
                         std::int64_t tokens);

}  // namespace headgate::demo
