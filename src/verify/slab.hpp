// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/tensor.hpp"

namespace headgate::verify {

/// Memory for views of one dtype, with guard zones around them. All bytes that no view covers hold 0xFF, which is NaN
/// in every floating dtype: a read of them shows in the result, and a write shows in `spill`.
class Slab {
 public:
  Slab() = default;

  /// One view of `shape` and `strides`. The base is aligned to the element and to nothing more.
  TensorView place(DType dtype, const Shape& shape, const Shape& strides);

  /// Views (B,H_n,L,W_n) side by side in the rows of one (B,L,Σ H_n·W_n) tensor: a fused projection.
  std::vector<TensorView> place_fused(DType dtype, const std::vector<Shape>& shapes);

  /// 0xFF everywhere, views included.
  void poison();

  /// True when a byte outside all views has changed.
  bool spilled() const;

  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  void allocate(DType dtype, std::int64_t elements);

  std::vector<std::uint8_t> bytes_;
  std::vector<TensorView> views_;
};

/// True when the element's bytes are all 0xFF: never written, or a NaN of the poison's making.
bool is_poison(const TensorView& view, std::int64_t offset);

}  // namespace headgate::verify
