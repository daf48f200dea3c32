// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_CONVERT_HPP_
#define HEADGATE_CONVERT_HPP_

#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/tensor.hpp"

/// @file
/// Converts between element types, for programs that compute in float and store numbers of 16 or 8 bits.

namespace headgate {

/// Copies `from` to `to` and converts each element to the dtype of `to`. Rounds to nearest, ties to even; f64 to 16
/// bits is rounded to f32 first. NaN stays NaN. Both views have the same shape, any strides, and dtype f32, f64, bf16
/// or f16. They must not overlap. Use make_vector_view() for a plain array. Throws Error for invalid views, before
/// anything is written.
HEADGATE_API void convert(const TensorView& to, const ConstTensorView& from);

/// Quantizes rows to int8: to[i] = round(from[i] / scale), to nearest, with scale = max_i |from[i]| / 127. A row of
/// zeros has scale 0. Apart from rounding errors, |to · scale − from| ≤ scale / 2. If a row contains NaN or an
/// infinity, its scale is NaN or infinity, and its elements are 0. Attention to such a row gives NaN.
///
/// `from` is (n0,n1,n2,D), f32, f64, bf16 or f16. `to` has the same shape and is i8. `scale` is (n0,n1,n2,1), f32.
/// Strides are arbitrary; the views must not overlap. Throws Error for invalid views, before anything is written.
HEADGATE_API void quantize(const TensorView& to, const TensorView& scale, const ConstTensorView& from);

}  // namespace headgate

#endif  // HEADGATE_CONVERT_HPP_
