// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/tensor.hpp"
#include "library/core/arena.hpp"
#include "models/layers/delta_net_buffers.hpp"

namespace headgate::layers {

/// Cache of one Gated DeltaNet layer for B sequences of equal length. Holds the last K−1 inputs of the convolution and
/// the state of each value head. The size of the cache does not depend on the number of tokens.
///
/// A recurrent state cannot forget a token. For truncate(), the cache therefore keeps states of earlier lengths:
/// - the state before the last pass
/// - the states that mark() kept
/// - the states after each of the last `keep` tokens
///
/// A pass consists of parts (next_part()). A part reads the current state and writes a new state to another block.
/// commit() then makes the new state the current one.
class DeltaNetCache {
 public:
  /// Buffers of a part of a pass: the states to read and the states to write. Shapes: convolution (B,1,K−1,channels),
  /// state (B,Hv,D,Dv).
  struct Pass {
    ConstTensorView convolution, state;
    TensorView next_convolution, next_state;
  };

  /// Creates a cache of zeros. `dtype` is the type of the layer's states. Allocates 2 states, or keep + 3 states if
  /// keep ≥ 1. mark() allocates up to one more for each mark. Throws Error unless `dtype` is f32 or f64 and keep ≥ 0.
  explicit DeltaNetCache(const DeltaNetShape& shape, DType dtype = DType::f32, std::int64_t keep = 0);

  /// Returns the size in bytes of a cache with this shape and type. The memory of `keep` and of mark() is not counted.
  static std::size_t planned_bytes(const DeltaNetShape& shape, DType dtype);

  /// Begins a forward pass. From then on, truncate() can undo the previous pass only if `keep` or a mark permits it.
  void begin_pass();
  /// Returns the number of tokens of the next part if `left` ≥ 1 tokens of the pass remain. Without `keep`, a pass has
  /// one part. With `keep`, the first part has all tokens but the last `keep`, and each further part has one token.
  std::int64_t next_part(std::int64_t left) const { return left > keep_ ? left - keep_ : 1; }
  /// Begins a part of a pass and returns its buffers.
  Pass begin_part();
  /// Completes a part of T tokens and makes its new state the current one. Must not be called for a part that failed.
  /// truncate() can then go back to the length before the pass.
  void commit(std::int64_t T);

  /// Returns the states (B,Hv,D,Dv) that the last pass read. Valid until the next begin_pass().
  ConstTensorView previous_state() const;

  /// Returns the number of tokens of each sequence so far.
  std::int64_t length() const { return kept_.back().length; }
  /// Marks the current state, so that truncate() can go back to the current length. Keeps the newest `most` ≥ 1 marks
  /// and forgets the others. Allocates at most one state. If it throws std::bad_alloc, the marks are unchanged.
  void mark(std::int64_t most);
  /// Returns the largest length ≤ `length` that truncate() can restore. It can restore 0, the length before the last
  /// pass, marked lengths, the current length and the `keep` lengths before it.
  std::int64_t reachable(std::int64_t length) const;
  /// Truncates each sequence to its first `length` tokens and restores the state after them bitwise. Throws Error
  /// unless reachable(length) is `length`.
  void truncate(std::int64_t length);

  /// Returns the number of bytes allocated.
  std::size_t bytes() const { return blocks_.size() * blocks_.front().bytes(); }
  /// Returns the number of bytes read to decode one more token of each sequence. The same number of bytes is written.
  std::size_t step_bytes() const;

 private:
  /// A state that truncate() can restore, and the number of tokens that led to it.
  struct Kept {
    std::size_t block = 0;  ///< index in blocks_
    std::int64_t length = 0;
    bool marked = false;
  };

  /// Returns the number of blocks for unmarked states: the current state, and the state that a part writes. With
  /// `keep`, adds blocks for the state before the pass and for the states of the last `keep` tokens.
  static std::size_t least_blocks(std::int64_t keep) { return keep == 0 ? 2 : static_cast<std::size_t>(keep) + 3; }
  void forget();
  TensorView convolution(std::size_t block) const;
  TensorView state(std::size_t block) const;
  std::size_t unused_block() const;
  void add_block();
  void clear();

  DType dtype_;
  std::int64_t keep_;
  std::int64_t pass_begin_ = 0;  ///< length before the last pass
  Shape convolution_shape_, state_shape_;
  std::vector<Block> blocks_;
  std::vector<Kept> kept_;  ///< in order of time; the last one is the current state
};

}  // namespace headgate::layers
