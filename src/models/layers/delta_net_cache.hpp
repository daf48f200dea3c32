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

/// Stores what one layer keeps of the tokens that it has seen, for B sequences that grow together: the last K−1 inputs
/// of the convolution and the state of each value head. Its size does not grow with the tokens.
///
/// A recurrent state cannot forget its last token. The cache therefore has two states: a pass reads one and writes the
/// other, which commit() makes the current one. So truncate() undoes the last pass without a copy.
class DeltaNetCache {
 public:
  /// What a pass reads and writes: (B,1,K−1,channels) and (B,Hv,D,Dv).
  struct Pass {
    ConstTensorView convolution, state;
    TensorView next_convolution, next_state;
  };

  /// Starts with zeros. dtype is f32 or f64, that of the layer's numbers.
  explicit DeltaNetCache(const DeltaNetShape& shape, DType dtype = DType::f32);

  /// Returns the bytes of such a cache.
  static std::size_t planned_bytes(const DeltaNetShape& shape, DType dtype);

  /// Returns the memory of a pass. The pass before it can then no longer be undone.
  Pass begin();
  /// Makes what the pass has written of T tokens the current state. A pass that fails calls nothing.
  void commit(std::int64_t T);

  /// Returns the states that the last pass has read, (B,Hv,D,Dv), until another one begins.
  ConstTensorView previous_state() const { return state(1 - current_); }

  /// Returns the number of tokens of each sequence so far.
  std::int64_t length() const { return length_; }
  /// Returns whether the cache can go back to its first `length` tokens: 0, those before the last pass, or all.
  bool can_truncate(std::int64_t length) const;
  /// Keeps the first `length` tokens. Throws Error unless can_truncate(length).
  void truncate(std::int64_t length);

  /// Returns the bytes of the memory allocated.
  std::size_t bytes() const { return states_[0].bytes() + states_[1].bytes(); }
  /// Returns the bytes that one more token of each sequence reads; it writes as many.
  std::size_t step_bytes() const;

 private:
  TensorView convolution(std::size_t index) const;
  TensorView state(std::size_t index) const;
  void clear();

  DType dtype_;
  Shape convolution_shape_, state_shape_;
  std::array<Block, 2> states_;
  std::size_t current_ = 0;  // index in states_
  std::int64_t length_ = 0;
  std::optional<std::int64_t> previous_length_;  // of the other state, while it holds what the last pass read
};

}  // namespace headgate::layers
