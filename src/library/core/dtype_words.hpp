// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "headgate/tensor.hpp"
#include "library/core/words.hpp"

namespace headgate {

/// Names of the dtypes that q may have. dtype_name() also names the dtypes of masks, indices and int8 caches.
template <>
struct Words<DType> {
  static constexpr std::array<Word<DType>, 4> kAll{{{DType::f32, dtype_name(DType::f32)},
                                                    {DType::f64, dtype_name(DType::f64)},
                                                    {DType::f16, dtype_name(DType::f16)},
                                                    {DType::bf16, dtype_name(DType::bf16)}}};
};

}  // namespace headgate
