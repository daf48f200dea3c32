// SPDX-License-Identifier: Apache-2.0
#include "headgate/cache.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "headgate/headgate.h"
#include "library/capi/operation.hpp"
#include "library/capi/sized.hpp"
#include "library/capi/status.hpp"
#include "library/capi/tensors.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/check.hpp"

struct headgate_cache {
  headgate::KvCache cache;
  mutable headgate::CacheBatch batch;  // owns k_first and v_first of the last headgate_cache_batch()
};

namespace headgate::capi {
namespace {

// Checks the sizes of structs on systems with 64-bit pointers. The sizes must not change before the next minor version,
// because programs compiled with version 0.2 depend on them.
static_assert(sizeof(void*) != 8 || sizeof(headgate_cache_shape) == 8 + 6 * 8 + 8);
static_assert(sizeof(void*) != 8 || sizeof(headgate_cache_tensors) == 8 + 4 * 80);

/// Converts the shape of a cache from C. Replaces a `page`, `dtype` or `whole_dtype` of 0 by the default of the C++
/// struct.
CacheShape to_cache_shape(const headgate_cache_shape* given) {
  const auto c = read_sized(given, "shape", {offsetof(headgate_cache_shape, whole_first)});
  CacheShape shape;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.head_dim;
  shape.value_dim = c.value_dim;
  shape.pages = c.pages;
  if (c.page != 0) shape.page = c.page;
  if (c.dtype != HEADGATE_DTYPE_NONE) shape.dtype = static_cast<DType>(c.dtype);
  if (c.whole_dtype != HEADGATE_DTYPE_NONE) shape.whole_dtype = static_cast<DType>(c.whole_dtype);
  shape.whole_first = c.whole_first;
  return shape;
}

CacheTensors to_cache_tensors(const headgate_cache_tensors* given) {
  const auto c = read_sized(given, "tensors");
  return {to_view(c.k, "k"), to_view(c.v, "v"), to_view(c.k_scale, "k_scale"), to_view(c.v_scale, "v_scale")};
}

/// Copies the tensors of a cache to a C struct, whose struct_size the caller must have set.
void hand_out(headgate_cache_tensors* to, const CacheTensors& from) {
  read_sized(static_cast<const headgate_cache_tensors*>(to), "tensors");
  to->k = to_c(from.k);
  to->v = to_c(from.v);
  to->k_scale = to_c(from.k_scale);
  to->v_scale = to_c(from.v_scale);
}

KvCache& cache_of(headgate_cache* cache) {
  require(cache != nullptr, "cache is null");
  return cache->cache;
}
const KvCache& cache_of(const headgate_cache* cache) {
  require(cache != nullptr, "cache is null");
  return cache->cache;
}

template <typename T>
T& out(T* to, const char* name) {
  require(to != nullptr, "{} is null", name);
  return *to;
}

std::span<const std::int64_t> to_sequences(const std::int64_t* sequences, std::size_t count) {
  require(sequences != nullptr || count == 0, "sequences is null but count is {}", count);
  return {sequences, count};
}

template <typename Source>
void create(headgate_cache** cache, const Source& source) {
  headgate_cache*& to = out(cache, "cache");
  to = std::make_unique<headgate_cache>(headgate_cache{KvCache(source), {}}).release();
}

std::size_t table_entries(const KvCache& cache, std::span<const std::int64_t> sequences) {
  std::size_t most = 0;
  for (const std::int64_t s : sequences) most = std::max(most, cache.pages(s).size());
  return sequences.size() * most;
}

/// The caller's arrays for block_table, key_lengths and query_offsets of a batch. `capacity` is the size of
/// block_table.
struct BatchMemory {
  std::int32_t* block_table;
  std::size_t capacity;
  std::int64_t *key_lengths, *query_offsets;
};

/// Sets the inputs of a batch. If the batch has the tensors k_first and v_first, moves the batch to `owner`, which then
/// owns their memory.
void make_batch(CacheBatch& owner, const KvCache& cache, headgate_attention_inputs* inputs, const BatchMemory& memory,
                std::span<const std::int64_t> sequences, std::int64_t T) {
  auto c = read_sized(static_cast<const headgate_attention_inputs*>(inputs), "inputs", older_sizes<kAttentionInputs>());
  CacheBatch batch = cache.batch(sequences, T);
  const std::size_t entries = batch.block_table.size();
  require(entries <= memory.capacity, "capacity is {} but the block table has {} entries", memory.capacity, entries);
  require(memory.block_table != nullptr || entries == 0, "block_table is null but receives {} entries", entries);
  for (const auto& [to, name] :
       {std::pair{memory.key_lengths, "key_lengths"}, std::pair{memory.query_offsets, "query_offsets"}}) {
    require(to != nullptr || sequences.empty(), "{} is null but receives {} numbers", name, sequences.size());
  }
  AttentionInputs views;
  batch.set(views);
  c.k = to_c(views.k);
  c.v = to_c(views.v);
  c.k_scale = to_c(views.k_scale);
  c.v_scale = to_c(views.v_scale);
  c.k_first = to_c(views.k_first);
  c.v_first = to_c(views.v_first);
  const auto in_memory_of_the_caller = [](ConstTensorView view, const void* data) {
    view.data = data;
    return to_c(view);
  };
  c.block_table = in_memory_of_the_caller(views.block_table, memory.block_table);
  c.key_lengths = in_memory_of_the_caller(views.key_lengths, memory.key_lengths);
  c.query_offsets = in_memory_of_the_caller(views.query_offsets, memory.query_offsets);
  write_sized(inputs, "inputs", c);
  std::copy(batch.block_table.begin(), batch.block_table.end(), memory.block_table);
  std::copy(batch.key_lengths.begin(), batch.key_lengths.end(), memory.key_lengths);
  std::copy(batch.query_offsets.begin(), batch.query_offsets.end(), memory.query_offsets);
  if (batch.first > 0) owner = std::move(batch);  // moving a vector keeps its buffer, to which *inputs points
}

}  // namespace
}  // namespace headgate::capi

namespace capi = headgate::capi;

headgate_status headgate_cache_bytes(size_t* bytes, const headgate_cache_shape* shape) {
  return capi::guarded(__func__,
                       [&] { capi::out(bytes, "bytes") = headgate::cache_bytes(capi::to_cache_shape(shape)); });
}

headgate_status headgate_cache_place(headgate_cache_tensors* tensors, void* memory, const headgate_cache_shape* shape) {
  return capi::guarded(__func__,
                       [&] { capi::hand_out(tensors, headgate::place_cache(memory, capi::to_cache_shape(shape))); });
}

headgate_status headgate_cache_create(headgate_cache** cache, const headgate_cache_shape* shape) {
  return capi::guarded(__func__, [&] { capi::create(cache, capi::to_cache_shape(shape)); });
}

headgate_status headgate_cache_create_over(headgate_cache** cache, const headgate_cache_tensors* tensors) {
  return capi::guarded(__func__, [&] { capi::create(cache, capi::to_cache_tensors(tensors)); });
}

void headgate_cache_destroy(headgate_cache* cache) { delete cache; }

headgate_status headgate_cache_add_sequence(headgate_cache* cache, int64_t* sequence) {
  return capi::guarded(__func__, [&] {
    std::int64_t& to = capi::out(sequence, "sequence");
    to = capi::cache_of(cache).add_sequence();
  });
}

headgate_status headgate_cache_fork(headgate_cache* cache, int64_t* made, int64_t sequence) {
  return capi::guarded(__func__, [&] {
    std::int64_t& to = capi::out(made, "made");
    to = capi::cache_of(cache).fork(sequence);
  });
}

headgate_status headgate_cache_remove_sequence(headgate_cache* cache, int64_t sequence) {
  return capi::guarded(__func__, [&] { capi::cache_of(cache).remove_sequence(sequence); });
}

headgate_status headgate_cache_append(headgate_cache* cache, const int64_t* sequences, size_t count,
                                      const headgate_const_tensor* k, const headgate_const_tensor* v) {
  return capi::guarded(__func__, [&] {
    headgate::KvCache& to = capi::cache_of(cache);
    const auto places = capi::to_sequences(sequences, count);
    const headgate::ConstTensorView keys = capi::to_view_of(k, "k");
    to.append(places, keys, capi::to_view_of(v, "v"));
  });
}

headgate_status headgate_cache_truncate(headgate_cache* cache, int64_t sequence, int64_t length) {
  return capi::guarded(__func__, [&] { capi::cache_of(cache).truncate(sequence, length); });
}

headgate_status headgate_cache_slide(headgate_cache* cache, int64_t sequence, int64_t sinks, int64_t window) {
  return capi::guarded(__func__, [&] { capi::cache_of(cache).slide(sequence, sinks, window); });
}

headgate_status headgate_cache_length(const headgate_cache* cache, int64_t* length, int64_t sequence) {
  return capi::guarded(__func__, [&] { capi::out(length, "length") = capi::cache_of(cache).length(sequence); });
}

headgate_status headgate_cache_position(const headgate_cache* cache, int64_t* position, int64_t sequence) {
  return capi::guarded(__func__, [&] { capi::out(position, "position") = capi::cache_of(cache).position(sequence); });
}

headgate_status headgate_cache_free_pages(const headgate_cache* cache, int64_t* pages) {
  return capi::guarded(__func__, [&] { capi::out(pages, "pages") = capi::cache_of(cache).free_pages(); });
}

headgate_status headgate_cache_get_tensors(const headgate_cache* cache, headgate_cache_tensors* tensors) {
  return capi::guarded(__func__, [&] { capi::hand_out(tensors, capi::cache_of(cache).tensors()); });
}

headgate_status headgate_cache_table_entries(const headgate_cache* cache, size_t* entries, const int64_t* sequences,
                                             size_t count) {
  return capi::guarded(__func__, [&] {
    capi::out(entries, "entries") = capi::table_entries(capi::cache_of(cache), capi::to_sequences(sequences, count));
  });
}

headgate_status headgate_cache_batch(const headgate_cache* cache, headgate_attention_inputs* inputs,
                                     int32_t* block_table, size_t capacity, int64_t* key_lengths,
                                     int64_t* query_offsets, const int64_t* sequences, size_t count, int64_t T) {
  return capi::guarded(__func__, [&] {
    const headgate::KvCache& from = capi::cache_of(cache);
    capi::make_batch(cache->batch, from, inputs, {block_table, capacity, key_lengths, query_offsets},
                     capi::to_sequences(sequences, count), T);
  });
}

headgate_status headgate_cache_grow(headgate_cache* cache, int64_t pages) {
  return capi::guarded(__func__, [&] { capi::cache_of(cache).grow(pages); });
}

headgate_status headgate_cache_move_to(headgate_cache* cache, const headgate_cache_tensors* tensors) {
  return capi::guarded(__func__, [&] { capi::cache_of(cache).move_to(capi::to_cache_tensors(tensors)); });
}
