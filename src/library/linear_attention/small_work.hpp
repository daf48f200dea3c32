// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"

namespace headgate {

/// Returns whether `elements` elements, read or written, take less than 32 KiB. One thread processes 32 KiB in a few
/// microseconds. Starting and ending a parallel region takes about as long.
inline bool is_small_work(double elements, DType dtype) {
  constexpr double kSmall_bytes = 32 * 1024;
  return elements * static_cast<double>(dtype_bytes(dtype)) < kSmall_bytes;
}

}  // namespace headgate
