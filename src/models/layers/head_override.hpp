// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "library/core/view.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// Replaces the outputs of `count` heads of a layer, from head `first` on, before W_o reads them. Evaluations use this.
/// The heads are query heads. In Gated DeltaNet, they are value heads.
template <typename T>
struct HeadOverride {
  std::int64_t first = 0, count = 0;
  View<const T, 2> factors;  ///< (count,D) factors that replace the heads' gates; absent: the heads output 0
  View<T, 3> ungated;        ///< (N,Hq,D) buffer for the output before the gate; present if `factors` is present
};

/// Overwrites the replaced heads in y(N,Hq,D).
template <typename T>
void replace_heads(const View<T, 3>& y, const HeadOverride<T>& replaced) {
  const auto [N, Hq, D] = y.shape;
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t i = 0; i < replaced.count; ++i) {
      T* out = y.at(n, replaced.first + i);
      if (!replaced.factors.present()) {
        std::fill_n(out, D, T{});
        continue;
      }
      const T *ungated = replaced.ungated.at(n, replaced.first + i), *factors = replaced.factors.at(i);
      for (std::int64_t d = 0; d < D; ++d) out[d] = rounded<T>(widened(ungated[d]) * widened(factors[d]));
    }
  }
}

}  // namespace headgate::layers
