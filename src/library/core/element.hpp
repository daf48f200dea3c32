// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/convert.hpp"

// Reads and writes single elements of a view as f64. For reference implementations, files and small vectors; too slow
// for inner loops.

namespace headgate {

inline double load_element(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f32: return static_cast<const float*>(data)[index];
    case DType::f64: return static_cast<const double*>(data)[index];
    case DType::bf16: return to_f32(static_cast<const BFloat16*>(data)[index]);
    case DType::f16: return to_f32(static_cast<const Float16*>(data)[index]);
    case DType::boolean: return static_cast<const std::uint8_t*>(data)[index] != 0 ? 1.0 : 0.0;
    case DType::i32: return static_cast<const std::int32_t*>(data)[index];
    case DType::i64: return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
    case DType::i8: return static_cast<const std::int8_t*>(data)[index];
    case DType::none: break;
  }
  return 0.0;
}

/// Stores an element of a floating-point dtype. For 16-bit dtypes, rounds `value` to f32 first.
inline void store_element(void* data, DType dtype, std::int64_t index, double value) {
  switch (dtype) {
    case DType::f32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case DType::f64: static_cast<double*>(data)[index] = value; break;
    case DType::bf16: static_cast<BFloat16*>(data)[index] = to_bf16(static_cast<float>(value)); break;
    case DType::f16: static_cast<Float16*>(data)[index] = to_f16(static_cast<float>(value)); break;
    default: break;
  }
}

template <typename Void>
std::int64_t offset_of(const BasicTensorView<Void>& view, std::int64_t i0, std::int64_t i1, std::int64_t i2,
                       std::int64_t i3) {
  return i0 * view.strides[0] + i1 * view.strides[1] + i2 * view.strides[2] + i3 * view.strides[3];
}

template <typename Void>
double load(const BasicTensorView<Void>& view, std::int64_t i0, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
  return load_element(view.data, view.dtype, offset_of(view, i0, i1, i2, i3));
}

/// Returns element i of an i32 or i64 vector (1,1,1,n).
inline std::int64_t load_index(const ConstTensorView& view, std::int64_t i) {
  const std::int64_t at = i * view.strides[3];
  return view.dtype == DType::i32 ? static_cast<const std::int32_t*>(view.data)[at]
                                  : static_cast<const std::int64_t*>(view.data)[at];
}

/// Returns entry m of row b of a block table, (1,1,B,M) i32.
inline std::int64_t page_of(const ConstTensorView& table, std::int64_t b, std::int64_t m) {
  return static_cast<const std::int32_t*>(table.data)[b * table.strides[2] + m * table.strides[3]];
}

inline void store(const TensorView& view, std::int64_t i0, std::int64_t i1, std::int64_t i2, std::int64_t i3,
                  double value) {
  store_element(view.data, view.dtype, offset_of(view, i0, i1, i2, i3), value);
}

/// Returns the view broadcast to `shape`: a dimension of size 1 that grows gets stride 0.
inline ConstTensorView broadcast_to(ConstTensorView view, const Shape& shape) {
  for (std::size_t d = 0; d < 4; ++d) {
    if (view.shape[d] == 1 && shape[d] != 1) {
      view.shape[d] = shape[d];
      view.strides[d] = 0;
    }
  }
  return view;
}

}  // namespace headgate
