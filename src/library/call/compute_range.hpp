// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "headgate/tensor.hpp"

namespace headgate {

/// Smallest and largest normal magnitudes of the type in which tensors of a dtype are computed.
struct ComputeRange {
  double tiny, huge;
  const char* name;
};

inline ComputeRange compute_range(DType dtype) {
  if (dtype == DType::f64) return {std::numeric_limits<double>::min(), std::numeric_limits<double>::max(), "f64"};
  return {std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), "f32"};
}

}  // namespace headgate
