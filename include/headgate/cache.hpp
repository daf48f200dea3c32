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
/// A paged KV cache for decoding. It records which pages of keys and values belong to which sequence.
///
///     KvCache cache(CacheShape{.kv_heads = 8, .head_dim = 128, .value_dim = 128, .page = 64, .pages = 1024});
///     const std::int64_t s = cache.add_sequence();
///     loop:
///       cache.append({&s, 1}, k, v);                     // T new tokens: (1,Hkv,T,D) and (1,Hkv,T,Dv)
///       const CacheBatch batch = cache.batch({&s, 1}, T);
///       AttentionInputs in; in.q = q; batch.set(in);     // k, v, block_table, key_lengths, query_offsets, scales
///       options.causality = Causality::causal; attention_forward({y}, in, options);
///
/// If pages are as long as the longest sequence, each sequence has one page. The cache is then a tensor (B,Hkv,S,D).

namespace headgate {

/// The sizes of a cache.
struct CacheShape {
  std::int64_t kv_heads = 0;   ///< Hkv
  std::int64_t head_dim = 0;   ///< D
  std::int64_t value_dim = 0;  ///< Dv
  std::int64_t page = 16;      ///< tokens per page, at least 1
  std::int64_t pages = 0;      ///< number of pages P, below 2^31
  DType dtype = DType::f32;    ///< f32, f64, bf16, f16, or i8 with one scale max|x| / 127 for each token and head
  /// Number F of tokens at the start of each sequence whose keys and values are kept unrounded (k_first and v_first of
  /// AttentionInputs). Only with i8. Each sequence stores these rows outside the pages.
  std::int64_t whole_first = 0;
  DType whole_dtype = DType::f32;  ///< type of the unrounded first rows: f32, f64, bf16 or f16
};

/// The memory of a cache.
struct CacheTensors {
  TensorView k{};        ///< (P,Hkv,page,D)
  TensorView v{};        ///< (P,Hkv,page,Dv), dtype of k
  TensorView k_scale{};  ///< (P,Hkv,page,1), f32; present only if k and v are i8
  TensorView v_scale{};  ///< (P,Hkv,page,1), f32; present only if k and v are i8
};

/// Returns the number of bytes that a cache of `shape` needs. Throws Error for invalid sizes.
HEADGATE_API std::size_t cache_bytes(const CacheShape& shape);

/// Returns contiguous tensors of `shape` in `memory`, which has cache_bytes(shape) bytes and is aligned to 8 bytes.
/// Does not write to the memory.
HEADGATE_API CacheTensors place_cache(void* memory, const CacheShape& shape);

/// Attention inputs for some sequences of a cache. Owns block_table, key_lengths, query_offsets and the unrounded first
/// rows. `tensors` points to the cache's memory.
struct CacheBatch {
  CacheTensors tensors;
  std::vector<std::int32_t> block_table;    ///< (B,M)
  std::vector<std::int64_t> key_lengths;    ///< (B)
  std::vector<std::int64_t> query_offsets;  ///< (B)
  std::int64_t first = 0;                   ///< F: number of rows of a sequence in k_first and v_first
  /// Type of k_first and v_first: whole_dtype or f64. slide() may leave a sequence with fewer than F unrounded rows.
  /// The others of its first F rows are then dequantized from int8, and the type is f64.
  DType first_dtype = DType::f32;
  std::vector<std::byte> k_first;  ///< (B,Hkv,F,D) of first_dtype
  std::vector<std::byte> v_first;  ///< (B,Hkv,F,Dv)

  /// Sets k, v, k_scale, v_scale, block_table, key_lengths, query_offsets, k_first and v_first of `inputs`. `inputs`
  /// points into the batch, which must outlive it.
  HEADGATE_API void set(AttentionInputs& inputs) const;
};

/// A KV cache whose sequences consist of pages. A function that fails throws Error or std::bad_alloc and changes
/// nothing. Not thread-safe: no thread may use the cache while another one changes it.
class HEADGATE_API KvCache {
 public:
  /// Creates a cache in the caller's memory, which must outlive the cache. The tensors may have any strides, but their
  /// elements must not overlap. The cache itself allocates only the unrounded rows of whole_first tokens (CacheShape),
  /// when a sequence is added.
  explicit KvCache(const CacheTensors& tensors, std::int64_t whole_first = 0, DType whole_dtype = DType::f32);
  /// Creates a cache that allocates and owns its memory.
  explicit KvCache(const CacheShape& shape);

  /// Adds a sequence without tokens and returns its number. remove_sequence() makes the number available again.
  std::int64_t add_sequence();
  /// Adds a copy of `sequence` and returns the number of the copy. Both sequences share the pages. If the last page is
  /// not full, the sequence that first appends a token gets a copy of that page.
  std::int64_t fork(std::int64_t sequence);
  /// Removes a sequence. Its number becomes available again, and so do its pages that no other sequence shares.
  void remove_sequence(std::int64_t sequence);

  /// Appends T tokens to each of B different sequences: k (B,Hkv,T,D) and v (B,Hkv,T,Dv), both f32, f64, bf16 or f16.
  /// Converts them to the cache's dtype; for i8, quantizes them with a scale for each token and head (convert.hpp).
  void append(std::span<const std::int64_t> sequences, const ConstTensorView& k, const ConstTensorView& v);

  /// Removes all tokens of the sequence after the first `length`.
  void truncate(std::int64_t sequence, std::int64_t length);

  /// Applies a sliding window with attention sinks: drops each page that holds none of the first `sinks` tokens and
  /// none of the last `window` tokens. Does not change the remaining keys. Consequences:
  ///
  ///   - position() still counts the dropped tokens. Keys and queries rotated by RoPE with position() keep their true
  ///     distances.
  ///   - Attention sees the remaining tokens as keys 0 … length() − 1. Causal masks stay correct. ALiBi distances to
  ///     the sinks become too short.
  ///   - The window is rounded up to whole pages. Do not set a window in AttentionOptions too: it would hide the sinks.
  ///   - Of the sequence's first whole_first tokens (CacheShape), those that remain are still read unrounded. All other
  ///     tokens are read as int8.
  ///
  /// `sinks` must fill the same number of pages in all calls for one sequence.
  void slide(std::int64_t sequence, std::int64_t sinks, std::int64_t window);

  /// Returns the number of tokens in the sequence.
  std::int64_t length(std::int64_t sequence) const;
  /// Returns the position of the sequence's next token: its length plus the tokens dropped by slide().
  std::int64_t position(std::int64_t sequence) const;
  /// Returns the pages of the sequence, in order.
  std::span<const std::int32_t> pages(std::int64_t sequence) const;
  /// Returns the number of pages that no sequence uses.
  std::int64_t free_pages() const;
  /// Returns the sizes of the cache, including pages added by grow() and move_to().
  const CacheShape& shape() const { return shape_; }
  /// Returns views of the cache's memory, valid until grow() or move_to().
  const CacheTensors& tensors() const { return tensors_; }

  /// Returns the attention inputs for a batch of sequences. The T queries of each sequence belong to its last T tokens.
  /// T must not exceed the shortest length. For packed queries (cu_seqlens_q), pass T = 0 and clear query_offsets of
  /// the inputs.
  CacheBatch batch(std::span<const std::int64_t> sequences, std::int64_t T) const;

  /// Enlarges the cache to `pages` pages. Invalidates views of its tensors. Only for a cache that owns its memory.
  void grow(std::int64_t pages);
  /// Copies all used pages to `tensors`, which is memory of the caller. The cache then uses this memory, and frees the
  /// memory that it owned. `tensors` must meet these conditions:
  ///
  ///   - Shapes and dtypes are those of the current tensors, except that there may be more pages.
  ///   - The memory does not overlap the current tensors. Exception: if the current tensors are the caller's memory
  ///     too, a tensor may stay in place, with the same address and strides.
  void move_to(const CacheTensors& tensors);

 private:
  struct Tokens {
    bool used = false;
    std::int64_t length = 0;
    std::int64_t dropped = 0;      // number of tokens dropped by slide()
    std::int64_t dropped_at = -1;  // number of tokens before the dropped ones; -1 if none were dropped
    std::vector<std::int32_t> pages;
    std::vector<std::byte> whole;  // unrounded k (Hkv,F,D), then v (Hkv,F,Dv), of the first F = whole_first tokens
  };

  const Tokens& tokens(const char* function, std::int64_t sequence) const;
  std::int32_t open_page(const Tokens& of) const;
  std::int64_t pages_needed(std::span<const std::int64_t> sequences, std::int64_t more) const;
  std::int32_t take_page();
  void release_page(std::int32_t page);
  void copy_page(std::int32_t to, std::int32_t from, std::int64_t rows);
  void adopt(const CacheTensors& tensors, std::int64_t pages);
  std::int64_t whole_rows(const Tokens& of) const;
  void place_first_rows(CacheBatch& batch, std::span<const std::int64_t> sequences) const;

  CacheShape shape_;
  CacheTensors tensors_;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<Tokens> sequences_;
  std::vector<std::int32_t> users_;  // number of sequences that use each page
  std::vector<std::int32_t> free_;
};

}  // namespace headgate

#endif  // HEADGATE_CACHE_HPP_
