// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headgate/tensor.hpp"
#include "python/headgate/array_memory.hpp"
#include "python/headgate/array_views.hpp"
#include "python/headgate/keywords.hpp"
#include "python/headgate/tensors.hpp"

// Converts Python arrays to views. Accepts NumPy arrays, PyTorch tensors and other arrays that support DLPack or the
// buffer protocol. Copies nothing except tensors with a lazy negation or conjugation.

namespace headgate::python {

namespace nb = nanobind;

/// An input array of a call and its view for kernels. Keeps the array's memory alive.
struct Input {
  ArrayMemory array;
  ConstTensorView view;  ///< absent if the argument is None
};

/// An output array of a call and its view for kernels. Keeps the array's memory alive.
struct Output {
  nb::object object;
  ArrayMemory array;
  TensorView view;
};

/// Returns the input for the array `object`. Its view is absent if `object` is None. Throws Error, "FUNCTION: NAME …",
/// if `object` is not a CPU array, its dtype is unsupported, or its rank does not match `kind`.
Input input_of(const char* function, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// Returns the output for the array `object` that the caller passed. Throws Error as input_of() does, and also for
/// read-only arrays and for tensors with a lazy negation or conjugation. Records the array in `keywords`, which reports
/// the write to autograd after the call.
Output passed_output_of(const Keywords& keywords, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// Returns the output for the array `object` that `function` itself created. Throws the errors of passed_output_of().
/// Does not report the write to autograd, since no graph contains a new array.
Output new_output_of(const char* function, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// Returns the output for `array`. If `array` is None, first sets `array` to the new array that make() returns.
template <class Make>
Output place_output(const Keywords& keywords, const char* name, nb::object& array, ArrayKind kind, Layout layout,
                    const Make& make) {
  if (!array.is_none()) return passed_output_of(keywords, name, array, kind, layout);
  array = make();
  return new_output_of(keywords.function(), name, array, kind, layout);
}

/// Parses the name of a dtype, in Headgate's spelling ("f32") or NumPy's ("float32"). Throws Error, "FUNCTION: NAME:
/// …".
DType dtype_of_word(const char* function, const char* name, const std::string& word);

/// Creates output arrays of the library of `like`: PyTorch tensors if `like` is a tensor, otherwise NumPy arrays.
class ArrayFactory {
 public:
  explicit ArrayFactory(nb::handle like) : makes_tensors_(is_tensor(like)) {}
  nb::object empty(std::span<const std::int64_t> sizes, DType dtype) const;

  /// Creates an uninitialized array with the shape and dtype of the input `of`. A tensor also keeps the order of the
  /// dimensions in memory, as results of PyTorch's own functions do. Views of it, such as transpose(), are then as
  /// contiguous as the caller's views of the input. NumPy arrays are contiguous in row-major order.
  nb::object empty_like(const Input& of) const;

 private:
  bool makes_tensors_;
};

/// Returns a NumPy array over the memory of `view`, which `owner` keeps alive.
nb::object array_over(const TensorView& view, ArrayKind kind, Layout layout, nb::handle owner);

/// Returns a new NumPy array of shape `sizes` with the elements `values`.
template <typename T>
nb::object array_of(const std::vector<T>& values, const std::vector<std::int64_t>& sizes) {
  nb::object array = ArrayFactory(nb::none()).empty(sizes, dtype_of<T>());
  const Output output = new_output_of("headgate", "values", array, ArrayKind::any, Layout::bhtd);
  std::copy(values.begin(), values.end(), static_cast<T*>(output.view.data));
  return array;
}

}  // namespace headgate::python
