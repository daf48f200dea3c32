// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"

namespace headgate {

/// Returns whether an element of `a` shares a byte with an element of `b`. Exact for nested strides, as in slices,
/// transposes and parts of a fused buffer. For other strides, returns false if the search exceeds its budget. Each view
/// must lie inside the address space and span at most 2^60 bytes.
bool provably_overlap(const ConstTensorView& a, const ConstTensorView& b);

/// Returns whether two elements of `view` share a byte. Also returns true if the search exceeds 2^20 steps, which
/// happens only for strides that are far from nested. `view` must lie inside the address space and span at most 2^60
/// bytes.
bool elements_overlap(const ConstTensorView& view);

}  // namespace headgate
