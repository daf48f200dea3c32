// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"

namespace headgate {

/// convert and quantize (headgate/convert.hpp) of views that have been checked.
void convert_unchecked(const TensorView& to, const ConstTensorView& from);
void quantize_unchecked(const TensorView& to, const TensorView& scale, const ConstTensorView& from);

}  // namespace headgate
