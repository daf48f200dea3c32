// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "headgate/tensor.hpp"
#include "library/core/arena.hpp"
#include "models/layers/delta_net_buffers.hpp"

namespace headgate::layers {

/// Cache of one Gated DeltaNet layer for B sequences of equal length: the last K−1 inputs of the convolution and the
/// state of each value head. Its size does not depend on the number of tokens.
///
/// A recurrent state cannot be rolled back by one token. The cache therefore keeps two states. A pass reads one and
/// writes the other, and commit() makes the new one current. truncate() undoes the last pass by switching back.
class DeltaNetCache {
 public:
  /// Buffers of a forward pass: the states that it reads and those that it writes. Shapes: convolution
  /// (B,1,K−1,channels), state (B,Hv,D,Dv).
  struct Pass {
    ConstTensorView convolution, state;
    TensorView next_convolution, next_state;
  };

  /// Creates a cache of zeros. `dtype` is the type of the layer's states, f32 or f64.
  explicit DeltaNetCache(const DeltaNetShape& shape, DType dtype = DType::f32);

  /// Returns the size in bytes of a cache with this shape and type.
  static std::size_t planned_bytes(const DeltaNetShape& shape, DType dtype);

  /// Begins a forward pass and returns its buffers. truncate() can then no longer undo the previous pass.
  Pass begin();
  /// Completes a forward pass over T tokens and makes the state that it wrote current. Must not be called after a pass
  /// that failed.
  void commit(std::int64_t T);

  /// Returns the states (B,Hv,D,Dv) that the last pass read. Valid until the next begin().
  ConstTensorView previous_state() const { return state(1 - current_); }

  /// Returns the number of tokens of each sequence so far.
  std::int64_t length() const { return length_; }
  /// Returns whether truncate(length) is possible: `length` is 0, the length before the last pass, or the current
  /// length.
  bool can_truncate(std::int64_t length) const;
  /// Truncates each sequence to its first `length` tokens. Throws Error unless can_truncate(length).
  void truncate(std::int64_t length);

  /// Returns the number of bytes allocated.
  std::size_t bytes() const { return states_[0].bytes() + states_[1].bytes(); }
  /// Returns the number of bytes read to decode one more token of each sequence; as many bytes are written.
  std::size_t step_bytes() const;

 private:
  TensorView convolution(std::size_t index) const;
  TensorView state(std::size_t index) const;
  void clear();

  DType dtype_;
  Shape convolution_shape_, state_shape_;
  std::array<Block, 2> states_;
  std::size_t current_ = 0;  // index of the current state in states_
  std::int64_t length_ = 0;
  std::optional<std::int64_t>
      previous_length_;  // length before the last pass; empty if the other state cannot be restored
};

}  // namespace headgate::layers
