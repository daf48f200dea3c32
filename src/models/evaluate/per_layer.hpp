// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/decoder/config.hpp"

namespace headgate::metrics {

/// Holds one accumulator of type Sum for each layer of a model.
template <class Sum>
class PerLayer {
 public:
  explicit PerLayer(const models::DecoderConfig& config, const Sum& empty = {})
      : sums_(static_cast<std::size_t>(config.layers), empty) {}

  Sum& at(std::int64_t layer) { return sums_[static_cast<std::size_t>(layer)]; }
  const Sum& at(std::int64_t layer) const { return sums_[static_cast<std::size_t>(layer)]; }

 private:
  std::vector<Sum> sums_;
};

}  // namespace headgate::metrics
