// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "headgate/tensor.hpp"

namespace headgate::python {

namespace nb = nanobind;

/// Describes the memory of a Python array: address, dtype, shape and strides. Keeps that memory alive.
struct ArrayMemory {
  static constexpr std::size_t kMaxRank = 4;

  std::size_t ndim() const { return rank; }
  const std::int64_t* shape_ptr() const { return shape.data(); }
  const std::int64_t* stride_ptr() const { return strides.data(); }

  void* data = nullptr;
  DType dtype = DType::none;
  bool read_only = false;
  std::size_t rank = 0;
  Shape shape{}, strides{};       ///< only the first `rank` entries are used; strides in elements
  nb::object owner;               ///< the Python array, if read_directly() has read it
  nb::ndarray<nb::ro> described;  ///< nanobind's handle of the array, if read_directly() has not read it
};

/// Reads a NumPy array by the buffer protocol, or a PyTorch tensor by the C functions of DLPack's exchange API. Either
/// way takes a tenth of the time of the general path, which calls `__dlpack__`. Returns nothing for subclasses, devices
/// other than the CPU, unsupported dtypes, more than four dimensions, and tensors with a lazy negation. The caller then
/// takes the general path, which reads the array or reports why it cannot.
std::optional<ArrayMemory> read_directly(nb::handle object);

}  // namespace headgate::python
