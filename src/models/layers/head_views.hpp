// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/view.hpp"

// Converts views of tokens with heads. Matrix products read rows, and the library's operations read tensors (B,H,T,F).

namespace headgate::layers {

/// Views (N,H,D) as rows (N,H·D), the form that matrix products read. The heads of a token must be adjacent in memory.
template <typename T>
View<T, 2> side_by_side(const View<T, 3>& heads) {
  return {heads.data, {heads.shape[0], heads.shape[1] * heads.shape[2]}};
}

/// Views the tokens (B·T,H,F) of B sequences as a tensor (B,H,T,F) of the library's operations.
template <typename U>
ViewOf<U> by_head(const View<U, 3>& tokens, std::int64_t B, std::int64_t T) {
  const auto [N, H, F] = tokens.shape;
  const auto [of_token, of_head, of_feature] = tokens.strides;
  return make_view(tokens.data, Shape{B, H, T, F}, Shape{T * of_token, of_head, of_token, of_feature});
}

}  // namespace headgate::layers
