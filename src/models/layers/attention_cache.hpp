// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/cache.hpp"
#include "headgate/runtime.hpp"
#include "models/layers/attention_buffers.hpp"

namespace headgate::layers {

/// KV cache of one layer for B sequences of equal length. Stores k and v after gate, norm and RoPE, as attention reads
/// them. A full cache grows by at least half of its size, up to `capacity` tokens per sequence. Beyond `capacity`, it
/// grows only by what an append needs. If a function throws Error or std::bad_alloc, the keys and values are unchanged.
class AttentionCache {
 public:
  /// Creates an empty cache.
  ///
  /// `first`: with dtype i8, the first `first` tokens of a sequence are stored in f32 instead of being rounded. slide()
  /// frees no pages while one of these tokens is still in the window.
  ///
  /// `keep`: truncate() can always go back by this many tokens, even after slide().
  AttentionCache(const GatedAttentionShape& shape, DType dtype, std::int64_t capacity, std::int64_t first = 0,
                 std::int64_t keep = 0);

  /// Returns how many keys fit into the pages of a sequence of `tokens` tokens: `tokens` rounded up to whole pages.
  static std::int64_t slots(std::int64_t tokens);
  /// Returns the size in bytes of a cache with capacity for `tokens` tokens of each sequence.
  static std::size_t planned_bytes(const GatedAttentionShape& shape, DType dtype, std::int64_t tokens,
                                   std::int64_t first = 0);

  /// Allocates memory for T more tokens of each sequence, so that appending them cannot fail for lack of memory.
  void reserve(std::int64_t T);
  /// Appends T tokens to each sequence: k and v (B,Hkv,T,D). Returns the batch to pass to attention with the queries of
  /// these tokens.
  CacheBatch append(const ConstTensorView& k, const ConstTensorView& v);
  /// Returns the batch to pass to attention with the queries of the last T tokens.
  CacheBatch latest(std::int64_t T) const { return cache_.batch(sequences_, T); }
  /// Result of rounded_keys(): the keys and values (B,Hkv,S,D) of an f32 cache, rounded to bf16. The last of the S keys
  /// belongs to the last token. The memory belongs to the calling thread and is valid until the thread's next call of
  /// rounded_keys().
  struct RoundedKeys {
    ConstTensorView k, v;
  };
  RoundedKeys rounded_keys(const ExecutionContext& context) const;
  DType dtype() const { return cache_.shape().dtype; }
  /// Frees the pages that are no longer needed. The next token needs the pages in its sliding window. truncate() needs
  /// the pages to go back by `keep` tokens, or to the length that mark() saved. Does nothing without a window.
  void slide();
  /// Saves the current length, in place of the length saved before. slide() then keeps the pages that truncate() needs
  /// to go back to the saved length.
  void mark() { marked_ = length(); }

  /// Returns the number of tokens of each sequence so far. Tokens freed by slide() count too.
  std::int64_t length() const;
  /// Returns `length` if truncate() can go back to it, and otherwise 0. slide() may have freed keys that the token
  /// after `length` needs. `length` must be in [0, length()].
  std::int64_t reachable(std::int64_t length) const;
  /// Truncates each sequence to its first `length` tokens. reachable(length) must be `length`.
  void truncate(std::int64_t length);

  /// Returns the number of bytes allocated.
  std::size_t bytes() const;
  /// Returns the number of bytes of keys and values that attention reads to decode one more token of each sequence.
  std::size_t step_bytes() const;

 private:
  std::int64_t window_, capacity_, keep_;
  std::int64_t marked_ = -1;  ///< length that mark() saved; −1: none
  std::vector<std::int64_t> sequences_;
  KvCache cache_;
};

}  // namespace headgate::layers
