// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "headgate/merge.hpp"
#include "library/core/element.hpp"

namespace headgate {

/// A tensor with memory of its own, filled with 0xFF.
struct Owned {
  std::vector<unsigned char> bytes;
  TensorView view;

  Owned() = default;
  Owned(DType dtype, const Shape& shape)
      : bytes(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]) * dtype_bytes(dtype), 0xFF),
        view(bytes.data(), dtype, shape, contiguous_strides(shape)) {}
  explicit Owned(const ConstTensorView& like) : Owned(like.dtype, like.shape) {}
};

/// Indices [begin,end) of a dimension of a view that may be absent.
template <typename Void>
BasicTensorView<Void> part(const BasicTensorView<Void>& view, std::size_t dimension, std::int64_t begin,
                           std::int64_t end) {
  return view.present() ? narrow(view, dimension, begin, end) : view;
}

/// Expects the bits of `packed`, where `alone` is present.
inline void expect_equal(const ConstTensorView& alone, const ConstTensorView& packed, const std::string& what) {
  if (!alone.present()) return;
  ASSERT_EQ(alone.shape, packed.shape) << what;
  const Shape& n = alone.shape;
  for (std::int64_t b = 0; b < n[0]; ++b) {
    for (std::int64_t h = 0; h < n[1]; ++h) {
      for (std::int64_t i = 0; i < n[2]; ++i) {
        for (std::int64_t x = 0; x < n[3]; ++x) {
          const double a = load(alone, b, h, i, x);
          const double p = load(packed, b, h, i, x);
          ASSERT_EQ(std::bit_cast<std::uint64_t>(a), std::bit_cast<std::uint64_t>(p))
              << what << " [" << b << "," << h << "," << i << "," << x << "] " << a << " " << p;
        }
      }
    }
  }
}

}  // namespace headgate
