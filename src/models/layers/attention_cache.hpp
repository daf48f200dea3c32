// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/cache.hpp"
#include "models/layers/attention_buffers.hpp"

namespace headgate::layers {

/// Keys and values, after gate, norm and RoPE, of the tokens that one layer has seen: B sequences that grow together.
/// Memory grows with them, by at least half of what there is, up to `capacity` tokens. Functions that throw, Error or
/// std::bad_alloc, have then changed nothing.
class AttentionCache {
 public:
  AttentionCache(const GatedAttentionShape& shape, DType dtype, std::int64_t capacity);

  /// Makes sure that append() of T tokens does not fail for want of memory.
  void reserve(std::int64_t T);
  /// T new tokens at the end of each sequence, k and v (B,Hkv,T,D); what attention of their queries is given.
  CacheBatch append(const ConstTensorView& k, const ConstTensorView& v);
  /// Frees the pages that a sliding window of the shape's has left behind.
  void slide();

  /// Tokens of each sequence so far, those included that slide() freed.
  std::int64_t length() const;
  /// The shortest length, but 0, that truncate() can leave.
  std::int64_t least_length() const;
  /// Leaves the first `length` tokens: 0, or least_length() to length().
  void truncate(std::int64_t length);

  /// Of the memory that is held.
  std::size_t bytes() const;
  /// Bytes of the keys and values that the queries of one more token of each sequence read.
  std::size_t step_bytes() const;

 private:
  std::int64_t window_, capacity_;
  std::vector<std::int64_t> sequences_;
  KvCache cache_;
};

}  // namespace headgate::layers
