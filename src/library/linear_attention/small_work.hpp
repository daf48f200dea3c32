// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"

namespace headgate {

/// Returns whether `elements` elements, read or written, are less than 32 KiB. One thread processes 32 KiB in a few
/// microseconds, about as long as starting and ending a parallel region takes.
inline bool is_small_work(double elements, DType dtype) {
  constexpr double kSmall_bytes = 32 * 1024;
  return elements * static_cast<double>(dtype_bytes(dtype)) < kSmall_bytes;
}

}  // namespace headgate
