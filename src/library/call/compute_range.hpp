// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "headgate/tensor.hpp"

namespace headgate {

/// The smallest and the largest normal number of the type that kernels compute in: f64 for f64 tensors, f32 for others.
struct ComputeRange {
  double tiny, huge;
  const char* name;
};

inline ComputeRange compute_range(DType dtype) {
  if (dtype == DType::f64) return {std::numeric_limits<double>::min(), std::numeric_limits<double>::max(), "f64"};
  return {std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), "f32"};
}

}  // namespace headgate
