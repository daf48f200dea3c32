// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "library/core/check.hpp"
#include "models/decoder/config.hpp"
#include "models/layers/gate_variant.hpp"

namespace headgate::cli {

/// A model's configuration, with the name that error messages give the model.
struct NamedConfig {
  std::string name;
  const models::DecoderConfig& config;
};

/// Throws Error if --gate-threshold is given and none of the models can use it.
/// The message explains why the first model cannot.
inline void check_gate_threshold(std::optional<double> threshold, const std::vector<NamedConfig>& models) {
  if (!threshold) return;
  constexpr double kMost = std::numeric_limits<float>::max();
  require(*threshold >= 0.0 && *threshold <= kMost, "--gate-threshold is {} but must be at least 0 and finite in f32",
          *threshold);
  const bool any = std::any_of(models.begin(), models.end(),
                               [](const NamedConfig& model) { return layers::can_skip_attention(model.config.gate); });
  require(any, "--gate-threshold: {} has gate {}, which does not multiply the attention output", models.front().name,
          layers::gate_name(models.front().config.gate));
}

}  // namespace headgate::cli
