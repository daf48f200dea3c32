// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/core/view.hpp"

namespace headgate::layers {

/// Query heads first … first+count−1 of a layer, and what W_o reads of them in the place of their output, for
/// evaluation.
template <typename T>
struct HeadOverride {
  std::int64_t first = 0, count = 0;
  View<const T, 2> factors;  ///< (count,D) times the attention output before its gate; absent: 0
  View<T, 3> ungated;        ///< (N,Hq,D) memory for that output, where there are factors
};

}  // namespace headgate::layers
