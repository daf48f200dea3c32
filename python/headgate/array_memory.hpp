// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "headgate/tensor.hpp"
#include "python/headgate/array_views.hpp"

namespace headgate::python {

namespace nb = nanobind;

/// Describes the memory of a Python array, and keeps that memory alive.
struct ArrayMemory : StridedArray {
  std::size_t ndim() const { return rank; }
  const std::int64_t* shape_ptr() const { return shape.data(); }
  const std::int64_t* stride_ptr() const { return strides.data(); }

  bool read_only = false;
  nb::object owner;               ///< the Python array, if read_directly() has read it
  nb::ndarray<nb::ro> described;  ///< nanobind's handle of the array, if the general path has read it
};

/// Reads a NumPy array through the buffer protocol, or a PyTorch tensor through DLPack's exchange API. Both take a
/// tenth of the time of the general path, which calls `__dlpack__`.
///
/// Returns nothing for subclasses, devices other than the CPU, unsupported dtypes, more than four dimensions, and
/// tensors with a lazy negation. The caller then takes the general path, which reads the array or reports why it
/// cannot.
std::optional<ArrayMemory> read_directly(nb::handle object);

}  // namespace headgate::python
