// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/core/view.hpp"

namespace headgate::layers {

/// Replaces the outputs of query heads first … first+count−1 of a layer, before W_o reads them, for evaluation.
template <typename T>
struct HeadOverride {
  std::int64_t first = 0, count = 0;
  View<const T, 2> factors;  ///< (count,D) multiply the attention output before its gate; absent: 0
  View<T, 3> ungated;        ///< (N,Hq,D) buffer for that output, if there are factors
};

}  // namespace headgate::layers
