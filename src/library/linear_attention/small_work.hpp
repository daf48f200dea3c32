// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"

namespace headgate {

/// Whether one thread passes over so many elements, read or written, sooner than a second one starts: 32 KiB take a few
/// microseconds, as do the start and the end of a parallel region.
inline bool is_small_work(double elements, DType dtype) {
  constexpr double kSmall_bytes = 32 * 1024;
  return elements * static_cast<double>(dtype_bytes(dtype)) < kSmall_bytes;
}

}  // namespace headgate
