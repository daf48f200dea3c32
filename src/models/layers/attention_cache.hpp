// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/cache.hpp"
#include "headgate/runtime.hpp"
#include "models/layers/attention_buffers.hpp"

namespace headgate::layers {

/// Stores keys and values, after gate, norm and RoPE, of the tokens that one layer has seen, for B sequences that grow
/// together. Memory grows with them, by at least half of its size at a time, up to `capacity` tokens. A function that
/// throws Error or std::bad_alloc leaves the cache unchanged.
class AttentionCache {
 public:
  AttentionCache(const GatedAttentionShape& shape, DType dtype, std::int64_t capacity);

  /// Returns the most keys, hidden ones included, that attention is given of a sequence of `tokens`: those of whole
  /// pages.
  static std::int64_t slots(std::int64_t tokens);
  /// Returns the bytes of a cache that has room for `tokens` of each sequence.
  static std::size_t planned_bytes(const GatedAttentionShape& shape, DType dtype, std::int64_t tokens);

  /// Allocates enough memory that append() of T tokens cannot fail for lack of it.
  void reserve(std::int64_t T);
  /// Appends T new tokens to each sequence, k and v (B,Hkv,T,D). Returns what attention of their queries takes.
  CacheBatch append(const ConstTensorView& k, const ConstTensorView& v);
  /// Returns the same for queries of the last T tokens, again.
  CacheBatch latest(std::int64_t T) const { return cache_.batch(sequences_, T); }
  /// Returns the keys and values held of each sequence, rounded to bf16, (B,Hkv,S,D), in memory of the calling thread's
  /// that is valid until its next call. Their last keys are those of the last tokens. The cache must be f32.
  struct RoundedKeys {
    ConstTensorView k, v;
  };
  RoundedKeys rounded_keys(const ExecutionContext& context) const;
  DType dtype() const { return cache_.shape().dtype; }
  /// Frees the pages that lie before the shape's sliding window.
  void slide();

  /// Returns the number of tokens of each sequence so far, including those that slide() freed.
  std::int64_t length() const;
  /// Returns the shortest length above 0 that truncate() can leave.
  std::int64_t least_length() const;
  /// Keeps the first `length` tokens: 0, or least_length() to length().
  void truncate(std::int64_t length);

  /// Returns the bytes of the memory allocated.
  std::size_t bytes() const;
  /// Returns the bytes of keys and values that the queries of one more token of each sequence read.
  std::size_t step_bytes() const;

 private:
  std::int64_t window_, capacity_;
  std::vector<std::int64_t> sequences_;
  KvCache cache_;
};

}  // namespace headgate::layers
