// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_CONVERT_HPP_
#define HEADGATE_CONVERT_HPP_

#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/tensor.hpp"

/// @file
/// Between the element types of arrays: what a program needs that computes in float and stores in 16 or 8 bits.

namespace headgate {

/// to = from, each element rounded to the dtype of `to`, to nearest, ties to even, f64 to 16 bits by way of f32; NaN
/// stays NaN. Both are of one shape and of f32, f64, bf16 or f16, any strides; make_vector_view makes one of an array.
/// They must not overlap. Throws Error, before anything is written, on views that do not fit.
HEADGATE_API void convert(const TensorView& to, const ConstTensorView& from);

/// Rows to int8: to[i] = round(from[i] / scale), to nearest, with scale = max_i |from[i]| / 127; a row of zeros has
/// scale 0. So |to · scale − from| ≤ scale / 2 but for roundings. A row with NaN or an infinity becomes zeros with that
/// as its scale, so that attention to it is NaN. from: (n0,n1,n2,D) of f32, f64, bf16 or f16; to: the same shape, i8;
/// scale: (n0,n1,n2,1), f32. Any strides; they must not overlap. Throws Error, before anything is written, on views
/// that do not fit.
HEADGATE_API void quantize(const TensorView& to, const TensorView& scale, const ConstTensorView& from);

}  // namespace headgate

#endif  // HEADGATE_CONVERT_HPP_
