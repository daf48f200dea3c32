// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/tensor.hpp"

namespace headgate::verify {

/// Where the tensors of a problem lie. guarded: between zones that show reads and writes beside a tensor, aligned to
/// their elements and to nothing more, for checks; aligned: from an address that is a multiple of kAligned_bytes, for
/// timing.
enum class Placement { guarded, aligned };

inline constexpr std::size_t kAligned_bytes = 64;  // a cache line, and the widest vector

/// Memory for views of one dtype. All bytes that no view covers hold 0xFF, which is NaN in every floating dtype: a read
/// of them shows in the result, and a write shows in `spilled`.
class Slab {
 public:
  explicit Slab(Placement placement) : placement_(placement) {}

  /// One view of `shape` and `strides`.
  TensorView place(DType dtype, const Shape& shape, const Shape& strides);

  /// Views (B,H_n,L,W_n) side by side in the rows of one (B,L,Σ H_n·W_n) tensor: a fused projection.
  std::vector<TensorView> place_fused(DType dtype, const std::vector<Shape>& shapes);

  /// 0xFF everywhere, views included.
  void poison();

  /// True when a byte outside all views has changed.
  bool spilled() const;

  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  /// Room for so many elements; the first of them.
  std::uint8_t* allocate(DType dtype, std::int64_t elements);

  Placement placement_;
  std::vector<std::uint8_t> bytes_;
  std::vector<TensorView> views_;
};

/// True when the element's bytes are all 0xFF: never written, or a NaN of the poison's making.
bool is_poison(const TensorView& view, std::int64_t offset);

}  // namespace headgate::verify
