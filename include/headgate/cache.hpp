// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_CACHE_HPP_
#define HEADGATE_CACHE_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headgate/attention.hpp"
#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/tensor.hpp"

/// @file
/// Keys and values of tokens seen so far, for decoding: pages of tokens in memory of the program's, and which sequence
/// has which of them.
///
///     KvCache cache(CacheShape{.kv_heads = 8, .head_dim = 128, .value_dim = 128, .page = 64, .pages = 1024});
///     const std::int64_t s = cache.add_sequence();
///     loop:
///       cache.append({&s, 1}, k, v);                     // of T new tokens, (1,Hkv,T,D) and (1,Hkv,T,Dv)
///       const CacheBatch batch = cache.batch({&s, 1}, T);
///       AttentionInputs in; in.q = q; batch.set(in);     // k, v, block_table, key_lengths, query_offsets, scales
///       options.causality = Causality::causal; attention_forward({y}, in, options);
///
/// A contiguous cache, (B,Hkv,S,D) with a slot for each sequence, is one whose pages are as long as a sequence can get.

namespace headgate {

/// The sizes of a cache.
struct CacheShape {
  std::int64_t kv_heads = 0;   ///< Hkv
  std::int64_t head_dim = 0;   ///< D
  std::int64_t value_dim = 0;  ///< Dv
  std::int64_t page = 16;      ///< tokens of a page, at least 1
  std::int64_t pages = 0;      ///< P, below 2^31
  DType dtype = DType::f32;    ///< f32, f64, bf16 or f16; i8: a scale for each token and head, max|x| / 127
};

/// The memory of a cache.
struct CacheTensors {
  TensorView k{};        ///< (P,Hkv,page,D)
  TensorView v{};        ///< (P,Hkv,page,Dv), dtype of k
  TensorView k_scale{};  ///< (P,Hkv,page,1), f32, with k and v of dtype i8; else absent
  TensorView v_scale{};  ///< as k_scale
};

/// Bytes that a cache of `shape` takes. Throws Error on sizes that make no cache.
HEADGATE_API std::size_t cache_bytes(const CacheShape& shape);

/// Contiguous tensors of `shape` in `memory`, cache_bytes(shape) bytes aligned to 8. Writes nothing.
HEADGATE_API CacheTensors place_cache(void* memory, const CacheShape& shape);

/// What attention needs of a cache for some of its sequences. Holds the vectors that it hands out views of; those of
/// k and v point into the cache's memory.
struct CacheBatch {
  CacheTensors tensors;
  std::vector<std::int32_t> block_table;    ///< (B,M)
  std::vector<std::int64_t> key_lengths;    ///< (B)
  std::vector<std::int64_t> query_offsets;  ///< (B)

  /// Sets k, v, k_scale, v_scale, block_table, key_lengths and query_offsets, which this batch must outlive.
  HEADGATE_API void set(AttentionInputs& inputs) const;
};

/// Sequences of tokens over the pages of a cache. Every function that fails throws Error, or std::bad_alloc, and has
/// then changed nothing. Not to be changed by two threads at once.
class HEADGATE_API KvCache {
 public:
  /// A cache over memory of the caller's, which must outlive it: any strides.
  explicit KvCache(const CacheTensors& tensors);
  /// A cache with memory of its own.
  explicit KvCache(const CacheShape& shape);

  /// A new sequence without tokens; its number, which remove_sequence frees for another.
  std::int64_t add_sequence();
  /// A sequence with the tokens of `sequence`. They share pages; the last one, if it is not full, is copied by the
  /// first of them that appends.
  std::int64_t fork(std::int64_t sequence);
  /// Drops a sequence; its pages, and its number, are free for others.
  void remove_sequence(std::int64_t sequence);

  /// T new tokens at the end of each of B different sequences: k (B,Hkv,T,D), v (B,Hkv,T,Dv), of one dtype, f32, f64,
  /// bf16 or f16; converted to the cache's, or quantized with a scale for each token and head (convert.hpp).
  void append(std::span<const std::int64_t> sequences, const ConstTensorView& k, const ConstTensorView& v);

  /// Leaves the first `length` tokens that the sequence holds.
  void truncate(std::int64_t sequence, std::int64_t length);

  /// A sliding window: drops whole pages that hold neither one of the first `sinks` tokens nor one of the last
  /// `window`. Tokens that stay keep their keys as they are. What follows of it:
  ///
  ///   - positions. position() goes on counting dropped tokens: keys and queries that RoPE has turned by it keep their
  ///     true distances, also to the first tokens;
  ///   - attention sees the tokens that stay as keys 0 … length() − 1, and the new queries at their end, so that causal
  ///     masks, and distances but to the first tokens (ALiBi), are right. The window is this one, rounded up to pages:
  ///     a window in AttentionOptions would hide the sinks too.
  ///
  /// All calls for a sequence must keep as many pages of sinks.
  void slide(std::int64_t sequence, std::int64_t sinks, std::int64_t window);

  /// Tokens that the sequence holds.
  std::int64_t length(std::int64_t sequence) const;
  /// The position of its next token: tokens it holds and tokens that slide dropped.
  std::int64_t position(std::int64_t sequence) const;
  /// Its pages, in order.
  std::span<const std::int32_t> pages(std::int64_t sequence) const;
  /// How many pages no sequence has.
  std::int64_t free_pages() const;
  /// The sizes, with the pages that grow and move_to have added.
  const CacheShape& shape() const { return shape_; }
  /// Views of the cache's memory, until it grows or moves.
  const CacheTensors& tensors() const { return tensors_; }

  /// The sequences as a batch whose T queries are the last T tokens of each; T at most the shortest length. For packed
  /// queries (cu_seqlens_q), of as many tokens of each as they say, take T = 0 and leave query_offsets out of the
  /// inputs.
  CacheBatch batch(std::span<const std::int64_t> sequences, std::int64_t T) const;

  /// More pages, in memory of the cache's own; views of its tensors end. For a cache that has memory of its own.
  void grow(std::int64_t pages);
  /// Copies every page to larger tensors of the caller's, which differ in P alone, and goes on there. Frees the memory
  /// of the cache's own, if it has some.
  void move_to(const CacheTensors& tensors);

 private:
  struct Tokens {
    bool used = false;
    std::int64_t length = 0;
    std::int64_t dropped = 0;      // tokens that slide dropped,
    std::int64_t dropped_at = -1;  // all of them before token dropped_at of those that are held
    std::vector<std::int32_t> pages;
  };

  const Tokens& tokens(const char* function, std::int64_t sequence) const;
  std::int32_t open_page(const Tokens& of) const;
  std::int64_t pages_needed(std::span<const std::int64_t> sequences, std::int64_t more) const;
  std::int32_t take_page();
  void release_page(std::int32_t page);
  void copy_page(std::int32_t to, std::int32_t from, std::int64_t rows);
  void adopt(const CacheTensors& tensors, std::int64_t pages);

  CacheShape shape_;
  CacheTensors tensors_;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<Tokens> sequences_;
  std::vector<std::int32_t> users_;  // of each page
  std::vector<std::int32_t> free_;
};

}  // namespace headgate

#endif  // HEADGATE_CACHE_HPP_
