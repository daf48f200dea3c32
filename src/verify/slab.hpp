// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headgate/tensor.hpp"

namespace headgate::verify {

/// How the tensors of a problem are placed. guarded, for checks: between zones that reveal reads and writes outside a
/// tensor, aligned to their elements only. aligned, for timing: at multiples of kAligned_bytes.
enum class Placement { guarded, aligned };

inline constexpr std::size_t kAligned_bytes = 64;  // a cache line, and the widest vector

/// The passes that a problem has tensors for. forward: without dy, other incoming gradients, gradients and statistics.
enum class Passes { forward, forward_and_backward, forward_and_statistics, all };

/// Memory for views of one dtype. All bytes that no view covers hold 0xFF, which is NaN in every floating dtype:
/// reading them shows in the result, writing them shows in spilled().
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
  /// Allocates `elements` elements and returns the address of the first.
  std::uint8_t* allocate(DType dtype, std::int64_t elements);

  Placement placement_;
  std::vector<std::uint8_t> bytes_;
  std::vector<TensorView> views_;
};

/// Slabs by the names of their tensors.
class Slabs {
 public:
  Slab& add(const std::string& name, Placement placement);
  void poison();
  /// The name of the first slab with a write outside its views.
  std::optional<std::string> spilled() const;
  /// All bytes, guards included.
  std::vector<std::uint8_t> bytes() const;

 private:
  std::vector<std::pair<std::string, std::unique_ptr<Slab>>> slabs_;
};

/// True if the element's bytes are all 0xFF: it was never written, or computed from poison.
bool is_poison(const TensorView& view, std::int64_t offset);

}  // namespace headgate::verify
