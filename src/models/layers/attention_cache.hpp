// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/cache.hpp"
#include "headgate/runtime.hpp"
#include "models/layers/attention_buffers.hpp"

namespace headgate::layers {

/// KV cache of one layer for B sequences of equal length. Stores k and v as attention reads them, after gate, norm and
/// RoPE. A full cache grows by at least half of its size. Beyond `capacity` tokens per sequence, it grows only by what
/// an append needs. A function that throws Error or std::bad_alloc leaves the keys and values unchanged.
class AttentionCache {
 public:
  /// `first` is CacheShape::whole_first: with dtype i8, the first `first` tokens are not rounded but stored in f32.
  /// slide() frees no pages until all these tokens are outside the window. `keep` is the number of tokens by which
  /// truncate() can go back even after slide().
  AttentionCache(const GatedAttentionShape& shape, DType dtype, std::int64_t capacity, std::int64_t first = 0,
                 std::int64_t keep = 0);

  /// Returns `tokens` rounded up to whole pages: the number of keys for which the pages of a sequence have room.
  static std::int64_t slots(std::int64_t tokens);
  /// Returns the size in bytes of a cache with capacity for `tokens` tokens of each sequence.
  static std::size_t planned_bytes(const GatedAttentionShape& shape, DType dtype, std::int64_t tokens,
                                   std::int64_t first = 0);

  /// Allocates memory for T more tokens of each sequence, so that appending them cannot fail for lack of memory.
  void reserve(std::int64_t T);
  /// Appends k and v (B,Hkv,T,D), T tokens for each sequence. Returns the batch to pass to attention with the queries
  /// of these T tokens.
  CacheBatch append(const ConstTensorView& k, const ConstTensorView& v);
  /// Returns the batch to pass to attention with the queries of the last T tokens.
  CacheBatch latest(std::int64_t T) const { return cache_.batch(sequences_, T); }
  /// Holds the result of rounded_keys(): the keys and values (B,Hkv,S,D) of an f32 cache, rounded to bf16. Key S−1
  /// belongs to the last token. The memory belongs to the calling thread, and is valid until the thread's next call of
  /// rounded_keys().
  struct RoundedKeys {
    ConstTensorView k, v;
  };
  RoundedKeys rounded_keys(const ExecutionContext& context) const;
  DType dtype() const { return cache_.shape().dtype; }
  /// Frees the pages that are outside the sliding window of the next token. Keeps the pages that truncate() needs to go
  /// back by up to `keep` tokens, or to the length saved by mark(). Does nothing without a window.
  void slide();
  /// Saves the current length, so that slide() keeps the pages that truncate() needs to go back to it. Replaces the
  /// previous mark.
  void mark() { marked_ = length(); }

  /// Returns the number of tokens of each sequence so far, including those freed by slide().
  std::int64_t length() const;
  /// Returns `length` if truncate() can go back to it, otherwise 0. truncate() cannot go back if slide() has freed keys
  /// that the token after `length` sees. `length` must be in [0, length()].
  std::int64_t reachable(std::int64_t length) const;
  /// Truncates each sequence to its first `length` tokens. reachable(length) must be `length`.
  void truncate(std::int64_t length);

  /// Returns the number of bytes allocated.
  std::size_t bytes() const;
  /// Returns the number of bytes of keys and values that attention reads to decode one more token of each sequence.
  std::size_t step_bytes() const;

 private:
  std::int64_t window_, capacity_, keep_;
  std::int64_t marked_ = -1;  ///< length at the mark; −1 without a mark
  std::vector<std::int64_t> sequences_;
  KvCache cache_;
};

}  // namespace headgate::layers
