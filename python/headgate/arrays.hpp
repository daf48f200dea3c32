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

// Converts Python arrays to views: NumPy's, PyTorch's, and others that support DLPack or the buffer protocol. Nothing
// is copied except tensors with a lazy negation or conjugation.

namespace headgate::python {

namespace nb = nanobind;

/// An array that a call reads, and the view that kernels get. Keeps the array's memory alive.
struct Input {
  ArrayMemory array;
  ConstTensorView view;  ///< absent if the argument is None
};

/// An array that a call writes, and the view that kernels get. Keeps the array's memory alive.
struct Output {
  nb::object object;
  ArrayMemory array;
  TensorView view;
};

/// Returns a view of the memory of `object`; the view is absent if `object` is None. Throws Error, "FUNCTION: NAME …",
/// if `object` is not a CPU array, its dtype is unsupported, or its rank does not match `kind`.
Input input_of(const char* function, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// Returns a view of the array `object`, which the caller passed to receive an output. Throws Error as input_of() does,
/// and also for read-only arrays and for tensors with a lazy negation or conjugation. Records the array in `keywords`,
/// which reports the write to autograd after the call.
Output output_of(const Keywords& keywords, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// Returns a view of the array `object`, which `function` itself created for an output. Throws Error as output_of()
/// does. Records nothing for autograd.
Output made_output_of(const char* function, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// Returns the Output that writes to `array`. If `array` is None, first sets it to the new array that make() returns.
template <class Make>
Output place_output(const Keywords& keywords, const char* name, nb::object& array, ArrayKind kind, Layout layout,
                    const Make& make) {
  if (!array.is_none()) return output_of(keywords, name, array, kind, layout);
  array = make();
  return made_output_of(keywords.function(), name, array, kind, layout);
}

/// Parses the name of a dtype, in Headgate's spelling ("f32") or NumPy's ("float32"). Throws Error, "FUNCTION: NAME:
/// …".
DType dtype_of_word(const char* function, const char* name, const std::string& word);

/// Creates output arrays of the same library as `like`: PyTorch tensors if `like` is one, otherwise NumPy arrays.
class Maker {
 public:
  explicit Maker(nb::handle like) : makes_tensors_(is_tensor(like)) {}
  nb::object empty(std::span<const std::int64_t> sizes, DType dtype) const;

  /// Creates an uninitialized array with the shape and dtype of `of`.
  nb::object empty_like(const Input& of) const;

 private:
  bool makes_tensors_;
};

/// Returns a NumPy array over the memory of `view`, which `owner` keeps alive.
nb::object array_over(const TensorView& view, ArrayKind kind, Layout layout, nb::handle owner);

/// Returns a new NumPy array of shape `sizes` with the elements `values`.
template <typename T>
nb::object array_of(const std::vector<T>& values, const std::vector<std::int64_t>& sizes) {
  nb::object array = Maker(nb::none()).empty(sizes, dtype_of<T>());
  const Output output = made_output_of("headgate", "values", array, ArrayKind::any, Layout::bhtd);
  std::copy(values.begin(), values.end(), static_cast<T*>(output.view.data));
  return array;
}

}  // namespace headgate::python
