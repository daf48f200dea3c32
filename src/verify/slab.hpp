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

/// Placement of a problem's tensors in memory.
/// - guarded, for checks: each tensor is between guard zones, which reveal accesses outside it, and is aligned only to
///   its element size.
/// - aligned, for timing: each tensor begins at a multiple of kAligned_bytes.
enum class Placement { guarded, aligned };

inline constexpr std::size_t kAligned_bytes = 64;  // bytes of a cache line, and of the widest vector

/// Passes that a problem has tensors for. For `forward`, it has no incoming gradients, gradients or statistics.
enum class Passes { forward, forward_and_backward, forward_and_statistics, all };

inline bool has_backward(Passes passes) { return passes == Passes::forward_and_backward || passes == Passes::all; }

/// Memory for views of one dtype. All bytes outside the views are 0xFF, which is NaN in every floating-point dtype. If
/// a kernel reads such bytes, its result is NaN. If a kernel writes such bytes, spilled() returns true.
class Slab {
 public:
  explicit Slab(Placement placement) : placement_(placement) {}

  /// Allocates one view of `shape` and `strides`.
  TensorView place(DType dtype, const Shape& shape, const Shape& strides);

  /// Allocates views (B,H_n,L,W_n) side by side in the rows of one tensor (B,L,Σ H_n·W_n), the layout of a fused
  /// projection.
  std::vector<TensorView> place_fused(DType dtype, const std::vector<Shape>& shapes);

  /// Sets every byte to 0xFF, including those of the views.
  void poison();

  /// Returns whether a byte outside all views has changed.
  bool spilled() const;

  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  /// Allocates `elements` elements and returns the address of the first.
  std::uint8_t* allocate(DType dtype, std::int64_t elements);

  Placement placement_;
  std::vector<std::uint8_t> bytes_;
  std::vector<TensorView> views_;
};

/// The memory (Slab) of several tensors, with the names of the tensors.
class Slabs {
 public:
  Slab& add(const std::string& name, Placement placement);
  void poison();
  /// Returns the name of the first slab with a byte written outside its views.
  std::optional<std::string> spilled() const;
  /// Returns all bytes, including the guard zones.
  std::vector<std::uint8_t> bytes() const;

 private:
  std::vector<std::pair<std::string, std::unique_ptr<Slab>>> slabs_;
};

/// Returns whether all bytes of an element are 0xFF. Such an element was never written, or was computed from poison.
bool is_poison(const TensorView& view, std::int64_t offset);

}  // namespace headgate::verify
