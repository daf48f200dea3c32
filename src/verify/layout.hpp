// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/words.hpp"

namespace headgate::verify {

/// Memory layout of a problem's tensors.
/// - bhtd, bthd: dense, in this order of dimensions
/// - fused: inputs from one projection, such as q, k and v, lie side by side in the rows of one tensor. Their gradients
///   share another tensor in the same way.
/// - broadcast: some dimensions of inputs have stride 0
/// - reversed: strides are negative
/// - gapped: no stride is 1
enum class Layout { bhtd, bthd, fused, broadcast, reversed, gapped };

/// Bits of the dimensions to which Layout::broadcast gives stride 0.
inline constexpr std::uint32_t kRepeatB = 1, kRepeatH = 2, kRepeatT = 4, kRepeatAll = 15;

/// Returns the strides of a tensor of `shape` that does not share memory with others.
inline Shape strides_of(Layout layout, const Shape& shape, std::uint32_t repeats) {
  const auto [n0, n1, n2, n3] = shape;
  switch (layout) {
    case Layout::bhtd: return contiguous_strides(shape);
    case Layout::bthd:
    case Layout::fused: return {n2 * n1 * n3, n3, n1 * n3, 1};
    case Layout::reversed: return {-n1 * n2 * n3, -n2 * n3, -n3, -1};
    case Layout::gapped: return {n1 * (n2 * (2 * n3 + 3) + 1), n2 * (2 * n3 + 3) + 1, 2 * n3 + 3, 2};
    case Layout::broadcast: {
      Shape strides = contiguous_strides(shape);
      for (std::size_t d = 0; d < 4; ++d) {
        if ((repeats >> d & 1U) != 0) strides[d] = 0;
      }
      return strides;
    }
  }
  return contiguous_strides(shape);
}

}  // namespace headgate::verify

namespace headgate {

template <>
struct Words<verify::Layout> {
  static constexpr std::array<Word<verify::Layout>, 6> kAll{{{verify::Layout::bhtd, "bhtd"},
                                                             {verify::Layout::bthd, "bthd"},
                                                             {verify::Layout::fused, "fused"},
                                                             {verify::Layout::broadcast, "broadcast"},
                                                             {verify::Layout::reversed, "reversed"},
                                                             {verify::Layout::gapped, "gapped"}}};
};

}  // namespace headgate
