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
/// - the states that mark() saved
/// - the states after each of the last `keep` tokens
///
/// A forward pass consists of parts (next_part()): ranges of tokens that are computed together. A part reads the
/// current state and writes a new state to another block of memory. commit() then makes the new state the current one.
class DeltaNetCache {
 public:
  /// Buffers of a part of a pass: states to read, and memory for the states to write. Shapes: convolution
  /// (B,1,K−1,channels), state (B,Hv,D,Dv).
  struct Pass {
    ConstTensorView convolution, state;
    TensorView next_convolution, next_state;
  };

  /// Creates a cache of zeros for states of type `dtype`. Allocates memory for 2 states, or for keep + 3 states if keep
  /// ≥ 1. Each mark can later add memory for one more state. Throws Error unless `dtype` is f32 or f64 and keep ≥ 0.
  explicit DeltaNetCache(const DeltaNetShape& shape, DType dtype = DType::f32, std::int64_t keep = 0);

  /// Returns the size in bytes of a cache with this shape and type, without the memory that `keep` and mark() add.
  static std::size_t planned_bytes(const DeltaNetShape& shape, DType dtype);

  /// Begins a forward pass. truncate() can then no longer restore the state before the previous pass, unless `keep` or
  /// a mark keeps that state.
  void begin_pass();
  /// Returns the number of tokens in the next part of a pass that has `left` ≥ 1 tokens left.
  /// - Without `keep`, a pass has one part.
  /// - With `keep`, the last `keep` tokens are parts of one token each. One part before them has all other tokens.
  std::int64_t next_part(std::int64_t left) const { return left > keep_ ? left - keep_ : 1; }
  /// Begins a part of a pass and returns its buffers.
  Pass begin_part();
  /// Completes a part of T tokens and makes its new state the current one. If a part fails, commit() must not be
  /// called.
  void commit(std::int64_t T);

  /// Returns the states (B,Hv,D,Dv) from before the last pass. The view is valid until the next begin_pass().
  ConstTensorView previous_state() const;

  /// Returns the number of tokens of each sequence so far.
  std::int64_t length() const { return kept_.back().length; }
  /// Marks the current length, so that truncate() can go back to it. Keeps the newest `most` ≥ 1 marks and forgets
  /// older ones. Allocates memory for at most one state. If std::bad_alloc is thrown, the marks are unchanged.
  void mark(std::int64_t most);
  /// Returns the largest length ≤ `length` that truncate() can restore. These lengths can be restored:
  /// - 0, the marked lengths and the current length
  /// - the length before the last pass
  /// - the `keep` lengths before the current one
  std::int64_t reachable(std::int64_t length) const;
  /// Truncates each sequence to its first `length` tokens. The restored state is bitwise identical to the state after
  /// these tokens. Throws Error if truncate() cannot restore `length` (see reachable()).
  void truncate(std::int64_t length);

  /// Returns the number of bytes allocated.
  std::size_t bytes() const { return blocks_.size() * blocks_.front().bytes(); }
  /// Returns how many bytes are read to decode one more token of each sequence. Decoding also writes this number of
  /// bytes.
  std::size_t step_bytes() const;

 private:
  /// Describes a saved state, which truncate() can restore, and the length of the sequences at that state.
  struct Kept {
    std::size_t block = 0;  ///< index in blocks_
    std::int64_t length = 0;
    bool marked = false;
  };

  /// Returns the number of blocks that unmarked states need. The current state needs one, and so does the state that a
  /// part writes. With `keep`, the state before the pass needs one, and so does each of the last `keep` tokens.
  static std::size_t least_blocks(std::int64_t keep) { return keep == 0 ? 2 : static_cast<std::size_t>(keep) + 3; }
  void forget();
  TensorView convolution(std::size_t block) const;
  TensorView state(std::size_t block) const;
  std::size_t unused_block() const;
  void add_block();
  void clear();

  DType dtype_;
  std::int64_t keep_;
  std::int64_t pass_begin_ = 0;  ///< length of the sequences before the last pass
  Shape convolution_shape_, state_shape_;
  std::vector<Block> blocks_;
  std::vector<Kept> kept_;  ///< saved states, in ascending order of length; the last one is the current state
};

}  // namespace headgate::layers
