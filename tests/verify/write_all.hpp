// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "library/core/element.hpp"

namespace headgate::verify {

/// Writes the oracle's values to a tensor, if it is there.
inline void write_all(const TensorView& to, const std::vector<double>& values) {
  if (!to.present()) return;
  std::size_t at = 0;
  for (std::int64_t a = 0; a < to.shape[0]; ++a) {
    for (std::int64_t b = 0; b < to.shape[1]; ++b) {
      for (std::int64_t c = 0; c < to.shape[2]; ++c) {
        for (std::int64_t d = 0; d < to.shape[3]; ++d) store(to, a, b, c, d, values[at++]);
      }
    }
  }
}

}  // namespace headgate::verify
