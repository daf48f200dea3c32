// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/tensor.hpp"

namespace headgate {

/// Orders of the dimensions (B,H,T,S) of a bias in memory. The last dimension in an order is contiguous. A linear layer
/// of pairs of tokens stores a bias with its heads adjacent, as in the first order.
inline constexpr std::array<std::size_t, 4> kBiasOrders[] = {
    {0, 2, 3, 1}, {0, 3, 2, 1}, {0, 1, 3, 2}, {3, 1, 0, 2}, {1, 2, 3, 0}};

/// Sizes `memory` for a tensor with the shape and dtype of `like` and its dimensions in another order. Returns its
/// view.
inline TensorView reordered(const ConstTensorView& like, const std::array<std::size_t, 4>& order,
                            std::vector<std::byte>& memory) {
  memory.assign(static_cast<std::size_t>(like.numel()) * dtype_bytes(like.dtype), std::byte{0xFF});
  TensorView to{memory.data(), like.dtype, like.shape, {}};
  std::int64_t stride = 1;
  for (std::size_t n = order.size(); n-- > 0; stride *= like.shape[order[n]]) to.strides[order[n]] = stride;
  return to;
}

}  // namespace headgate
