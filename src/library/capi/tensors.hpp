// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "headgate/tensor.hpp"
#include "headgate/types.h"
#include "library/core/check.hpp"

// Converts tensors of the C API to views of the C++ API, and back.

namespace headgate::capi {

inline Shape to_shape(const int64_t (&values)[4]) { return {values[0], values[1], values[2], values[3]}; }

/// Returns the view of a C tensor. Error messages call the tensor `name`.
template <typename Tensor>
auto to_view(const Tensor& tensor, const char* name) {
  using View = std::conditional_t<std::is_same_v<Tensor, headgate_tensor>, TensorView, ConstTensorView>;
  require(tensor.reserved == 0, "{}.reserved is {} but must be 0", name, tensor.reserved);
  return View(tensor.data, static_cast<DType>(tensor.dtype), to_shape(tensor.shape), to_shape(tensor.strides));
}

template <typename Tensor>
auto to_view_of(const Tensor* tensor, const char* name) {
  require(tensor != nullptr, "{} is null", name);
  return to_view(*tensor, name);
}

template <typename Void>
auto to_c(const BasicTensorView<Void>& view) {
  std::conditional_t<std::is_const_v<Void>, headgate_const_tensor, headgate_tensor> tensor{};
  tensor.data = view.data;
  tensor.dtype = static_cast<headgate_dtype>(view.dtype);
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.strides.begin(), view.strides.end(), tensor.strides);
  return tensor;
}

}  // namespace headgate::capi
