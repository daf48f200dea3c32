// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "headgate/tensor.hpp"
#include "library/core/words.hpp"

namespace headgate {

/// The dtypes that attention computes in; dtype_name names those of other tensors too.
template <>
struct Words<DType> {
  static constexpr std::array<Word<DType>, 4> kAll{{{DType::f32, dtype_name(DType::f32)},
                                                    {DType::f64, dtype_name(DType::f64)},
                                                    {DType::f16, dtype_name(DType::f16)},
                                                    {DType::bf16, dtype_name(DType::bf16)}}};
};

}  // namespace headgate
