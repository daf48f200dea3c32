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

/// Where the elements of a Python array lie. It keeps the array's memory alive.
struct ArrayMemory {
  static constexpr std::size_t kMaxRank = 4;

  std::size_t ndim() const { return rank; }
  const std::int64_t* shape_ptr() const { return shape.data(); }
  const std::int64_t* stride_ptr() const { return strides.data(); }

  void* data = nullptr;
  DType dtype = DType::none;
  bool read_only = false;
  std::size_t rank = 0;
  Shape shape{}, strides{};       ///< the first `rank` dimensions; strides count elements
  nb::object owner;               ///< the array itself, or
  nb::ndarray<nb::ro> described;  ///< what DLPack's or the buffer protocol's general way has of it
};

/// The memory of an array of NumPy, by the buffer protocol, or of a tensor of PyTorch, by the C functions of DLPack's
/// exchange API: both take a tenth of the general way, which calls `__dlpack__`. Nothing for subclasses, other devices,
/// other dtypes, more than four dimensions, and tensors with a lazy negation: the general way reads them, or tells why
/// it cannot.
std::optional<ArrayMemory> read_directly(nb::handle object);

}  // namespace headgate::python
