// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"

namespace headgate {

/// These functions implement convert() and quantize() of headgate/convert.hpp, without checks of the arguments.
void convert_unchecked(const TensorView& to, const ConstTensorView& from);
void quantize_unchecked(const TensorView& to, const TensorView& scale, const ConstTensorView& from);

}  // namespace headgate
