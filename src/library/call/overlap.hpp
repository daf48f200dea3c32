// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"

namespace headgate {

/// Whether some element of `a` shares a byte with some element of `b`. Exact for strides that nest, as those of
/// slices, transposes and slots of a fused buffer do; a search that runs out of its budget answers false.
/// The views' memory must lie inside the address space and span at most 2^60 bytes each.
bool provably_overlap(const ConstTensorView& a, const ConstTensorView& b);

/// Whether two elements of `view` share a byte. Exact, but that a search of more than 2^20 steps, which only strides
/// far from nested take, answers true. The same bounds hold for its memory.
bool elements_overlap(const ConstTensorView& view);

}  // namespace headgate
