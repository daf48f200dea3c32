// SPDX-License-Identifier: Apache-2.0
#include "headgate/cache.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "library/attention/convert.hpp"
#include "library/call/call.hpp"
#include "library/core/check.hpp"
#include "library/core/element.hpp"

namespace headgate {
namespace {

constexpr std::int64_t kAlignment_bytes = 64;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

/// Describes one of a cache's four tensors: k, v, k_scale or v_scale.
struct Member {
  TensorView CacheTensors::*view;
  const char* name;
  std::int64_t width;
  DType dtype;
};

std::array<Member, 4> members(const CacheShape& s) {
  const DType scale = s.dtype == DType::i8 ? DType::f32 : DType::none;
  return {Member{&CacheTensors::k, "k", s.head_dim, s.dtype}, Member{&CacheTensors::v, "v", s.value_dim, s.dtype},
          Member{&CacheTensors::k_scale, "k_scale", 1, scale}, Member{&CacheTensors::v_scale, "v_scale", 1, scale}};
}

Shape shape_of(const CacheShape& s, const Member& m) { return {s.pages, s.kv_heads, s.page, m.width}; }

std::int64_t member_bytes(const CacheShape& s, const Member& m) {
  std::int64_t bytes = static_cast<std::int64_t>(dtype_bytes(m.dtype));
  for (const std::int64_t n : shape_of(s, m)) {
    require(!__builtin_mul_overflow(bytes, n, &bytes) && bytes <= kMostBytes,
            "cache: {} of shape {} is longer than any memory", m.name, shape_text(shape_of(s, m)));
  }
  return (bytes + kAlignment_bytes - 1) / kAlignment_bytes * kAlignment_bytes;
}

/// Returns the bytes of one sequence's unrounded rows: its first keys and values, not rounded to int8.
std::size_t unrounded_bytes(const CacheShape& s) {
  std::int64_t bytes = static_cast<std::int64_t>(dtype_bytes(s.whole_dtype)) * (s.head_dim + s.value_dim);
  for (const std::int64_t n : {s.kv_heads, s.whole_first}) {
    require(!__builtin_mul_overflow(bytes, n, &bytes) && bytes <= kMostBytes,
            "cache: whole_first is {}: its rows are longer than any memory", s.whole_first);
  }
  return static_cast<std::size_t>(bytes);
}

void check_shape(const CacheShape& s) {
  const bool known = s.dtype == DType::f32 || s.dtype == DType::f64 || s.dtype == DType::bf16 ||
                     s.dtype == DType::f16 || s.dtype == DType::i8;
  require(known, "cache: dtype is {} but must be f32, f64, bf16, f16 or i8", dtype_text(s.dtype));
  require(s.kv_heads >= 1, "cache: kv_heads is {} but must be at least 1", s.kv_heads);
  for (const auto& [name, dim] : {std::pair{"head_dim", s.head_dim}, std::pair{"value_dim", s.value_dim}}) {
    require(dim >= 1 && dim <= kMaxHeadDim, "cache: {} is {} but must be 1 to {}", name, dim, kMaxHeadDim);
  }
  require(s.page >= 1, "cache: page is {} but must be at least 1 token", s.page);
  require(s.whole_first >= 0, "cache: whole_first is {} but must be at least 0", s.whole_first);
  require(s.whole_first == 0 || s.dtype == DType::i8,
          "cache: whole_first is {} but dtype is {}: only i8 rounds keys and values", s.whole_first,
          dtype_text(s.dtype));
  const bool whole_known = s.whole_dtype == DType::f32 || s.whole_dtype == DType::f64 || s.whole_dtype == DType::bf16 ||
                           s.whole_dtype == DType::f16;
  require(whole_known, "cache: whole_dtype is {} but must be f32, f64, bf16 or f16", dtype_text(s.whole_dtype));
  require(s.pages >= 0 && s.pages <= std::numeric_limits<std::int32_t>::max(), "cache: pages is {} but must be 0 to {}",
          s.pages, std::numeric_limits<std::int32_t>::max());
  // Throws Error if the cache's size in bytes overflows. Counts one page for a cache without pages.
  // Later sums of token counts then cannot overflow.
  CacheShape some = s;
  some.pages = std::max<std::int64_t>(s.pages, 1);
  for (const Member& m : members(some)) (void)member_bytes(some, m);
  (void)unrounded_bytes(some);
}

CacheShape shape_of(const CacheTensors& t, std::int64_t whole_first, DType whole_dtype) {
  const Shape& k = t.k.shape;
  return {.kv_heads = k[1],
          .head_dim = k[3],
          .value_dim = t.v.shape[3],
          .page = k[2],
          .pages = k[0],
          .dtype = t.k.dtype,
          .whole_first = whole_first,
          .whole_dtype = whole_dtype};
}

/// Throws Error unless the tensors have the shapes and dtypes of a cache of `shape`.
/// Their memory must be valid and must not overlap.
void check_tensors(const CacheTensors& tensors, const CacheShape& shape) {
  check_shape(shape);
  Call call("cache");
  for (const Member& m : members(shape)) {
    const TensorView& view = tensors.*m.view;
    if (view.dtype != m.dtype) {
      call.fail("{} has dtype {} but must have {}", m.name, dtype_text(view.dtype), dtype_text(m.dtype));
    }
    if (m.dtype == DType::none) continue;
    if (view.shape != shape_of(shape, m)) {
      call.fail("{} has shape {} but must have {}", m.name, shape_text(view.shape), shape_text(shape_of(shape, m)));
    }
    call.output({m.name, view}, {m.dtype});
  }
  call.no_overlap();
}

/// Returns true if two views have the same address and strides.
bool is_same_memory(const TensorView& a, const TensorView& b) { return a.data == b.data && a.strides == b.strides; }

/// Throws Error if new tensors of a cache overlap the old ones.
/// With `may_stay`, a new tensor may begin where the old one begins. New pages then follow the old pages in memory.
void check_apart(const CacheTensors& now, const CacheTensors& old, const CacheShape& shape, bool may_stay) {
  for (const Member& to : members(shape)) {
    for (const Member& from : members(shape)) {
      const TensorView &a = now.*to.view, &b = old.*from.view;
      const bool stays = may_stay && to.view == from.view && is_same_memory(a, b);
      require(stays || !provably_overlap(a, b), "cache move_to: {} overlaps the present {} in memory", to.name,
              from.name);
    }
  }
}

/// Returns a view (1,Hkv,n,width) of the tokens [first, first + n) in page `page`.
template <typename Void>
BasicTensorView<Void> rows_of(const BasicTensorView<Void>& view, std::int64_t page, std::int64_t first,
                              std::int64_t n) {
  BasicTensorView<Void> part = view;
  const std::int64_t offset = offset_of(view, page, 0, first, 0) * static_cast<std::int64_t>(dtype_bytes(view.dtype));
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  part.data = static_cast<Byte*>(view.data) + offset;
  part.shape[0] = 1;
  part.shape[2] = n;
  return part;
}

/// Returns views of one sequence's unrounded rows: the first F keys (1,Hkv,F,D) and values (1,Hkv,F,Dv).
/// `memory` holds the keys, followed by the values.
template <typename Byte>
auto unrounded_rows(Byte* memory, const CacheShape& s) {
  const Shape k{1, s.kv_heads, s.whole_first, s.head_dim}, v{1, s.kv_heads, s.whole_first, s.value_dim};
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(s.whole_dtype)) * s.kv_heads * s.whole_first * s.head_dim;
  using View = std::conditional_t<std::is_const_v<Byte>, ConstTensorView, TensorView>;
  return std::array{View{memory, s.whole_dtype, k, contiguous_strides(k)},
                    View{memory + bytes, s.whole_dtype, v, contiguous_strides(v)}};
}

/// Multiplies int8 rows (1,Hkv,n,X) by their scales, and stores the products in `to`, rounded to the dtype of `to`.
void dequantize(const TensorView& to, const ConstTensorView& rows, const ConstTensorView& scale) {
  for (std::int64_t h = 0; h < to.shape[1]; ++h) {
    for (std::int64_t j = 0; j < to.shape[2]; ++j) {
      for (std::int64_t d = 0; d < to.shape[3]; ++d) {
        store(to, 0, h, j, d, load(scale, 0, h, j, 0) * load(rows, 0, h, j, d));
      }
    }
  }
}

void copy_rows(const TensorView& to, const TensorView& from) {
  const auto size = dtype_bytes(to.dtype);
  for (std::int64_t h = 0; h < to.shape[1]; ++h) {
    for (std::int64_t j = 0; j < to.shape[2]; ++j) {
      for (std::int64_t d = 0; d < to.shape[3]; ++d) {
        std::memcpy(static_cast<std::byte*>(to.data) + offset_of(to, 0, h, j, d) * static_cast<std::int64_t>(size),
                    static_cast<std::byte*>(from.data) + offset_of(from, 0, h, j, d) * static_cast<std::int64_t>(size),
                    size);
      }
    }
  }
}

void check_new_tokens(Call& call, const Argument& x, const Shape& shape) {
  call.input(x, {DType::f32, DType::f64, DType::bf16, DType::f16});
  if (x.view.shape != shape) {
    call.fail("{} has shape {} but must have {}", x.name, shape_text(x.view.shape), shape_text(shape));
  }
}

}  // namespace

std::size_t cache_bytes(const CacheShape& shape) {
  check_shape(shape);
  std::int64_t bytes = 0;
  for (const Member& m : members(shape)) bytes += member_bytes(shape, m);
  return static_cast<std::size_t>(bytes);
}

CacheTensors place_cache(void* memory, const CacheShape& shape) {
  const std::size_t bytes = cache_bytes(shape);
  require(memory != nullptr || bytes == 0, "cache: memory is null");
  CacheTensors tensors;
  auto* at = static_cast<std::byte*>(memory);
  for (const Member& m : members(shape)) {
    if (m.dtype == DType::none) continue;
    tensors.*m.view = {at, m.dtype, shape_of(shape, m), contiguous_strides(shape_of(shape, m))};
    at += member_bytes(shape, m);
  }
  return tensors;
}

void CacheBatch::set(AttentionInputs& inputs) const {
  const auto B = static_cast<std::int64_t>(key_lengths.size());
  const std::int64_t M = B > 0 ? static_cast<std::int64_t>(block_table.size()) / B : 0;
  inputs.k = tensors.k;
  inputs.v = tensors.v;
  inputs.k_scale = tensors.k_scale;
  inputs.v_scale = tensors.v_scale;
  inputs.block_table = make_view(block_table.data(), Shape{1, 1, B, M});
  inputs.key_lengths = make_vector_view(key_lengths.data(), B);
  inputs.query_offsets = make_vector_view(query_offsets.data(), B);
  inputs.k_first = inputs.v_first = {};
  if (first == 0) return;
  const auto rows = [&](const std::vector<std::byte>& memory, const TensorView& of) {
    const Shape shape{B, of.shape[1], first, of.shape[3]};
    return ConstTensorView{memory.data(), first_dtype, shape, contiguous_strides(shape)};
  };
  inputs.k_first = rows(k_first, tensors.k);
  inputs.v_first = rows(v_first, tensors.v);
}

KvCache::KvCache(const CacheTensors& tensors, std::int64_t whole_first, DType whole_dtype)
    : shape_(headgate::shape_of(tensors, whole_first, whole_dtype)) {
  check_tensors(tensors, shape_);
  adopt(tensors, 0);
}

KvCache::KvCache(const CacheShape& shape) : shape_(shape), memory_(new std::byte[cache_bytes(shape)]) {
  adopt(place_cache(memory_.get(), shape), 0);
}

/// Makes `tensors` the memory of the cache.
/// The first `pages` pages keep their state (used or free). All later pages are free.
/// If an allocation throws std::bad_alloc, the cache is unchanged.
void KvCache::adopt(const CacheTensors& tensors, std::int64_t pages) {
  const CacheShape shape = headgate::shape_of(tensors, shape_.whole_first, shape_.whole_dtype);
  users_.resize(static_cast<std::size_t>(shape.pages), 0);
  free_.reserve(static_cast<std::size_t>(shape.pages));
  // Sorts the new page numbers in descending order. take_page() takes the last entry of free_: the lowest page.
  std::vector<std::int32_t> all(static_cast<std::size_t>(shape.pages - pages));
  for (std::size_t n = 0; n < all.size(); ++n)
    all[n] = static_cast<std::int32_t>(shape.pages - 1) - static_cast<std::int32_t>(n);
  free_.insert(free_.begin(), all.begin(), all.end());
  shape_ = shape;
  tensors_ = tensors;
}

const KvCache::Tokens& KvCache::tokens(const char* function, std::int64_t sequence) const {
  const bool known = sequence >= 0 && sequence < static_cast<std::int64_t>(sequences_.size()) &&
                     sequences_[static_cast<std::size_t>(sequence)].used;
  require(known, "cache {}: {} is no sequence", function, sequence);
  return sequences_[static_cast<std::size_t>(sequence)];
}

std::int64_t KvCache::add_sequence() {
  const auto unused = std::find_if(sequences_.begin(), sequences_.end(), [](const Tokens& t) { return !t.used; });
  const auto at = unused - sequences_.begin();
  std::vector<std::byte> unrounded(unrounded_bytes(shape_));
  if (unused == sequences_.end()) sequences_.emplace_back();
  Tokens& added = sequences_[static_cast<std::size_t>(at)];
  added.used = true;
  added.whole = std::move(unrounded);
  return at;
}

std::int64_t KvCache::fork(std::int64_t sequence) {
  Tokens copy = tokens("fork", sequence);
  const std::int64_t made = add_sequence();
  for (const std::int32_t page : copy.pages) ++users_[static_cast<std::size_t>(page)];
  sequences_[static_cast<std::size_t>(made)] = std::move(copy);
  return made;
}

void KvCache::remove_sequence(std::int64_t sequence) {
  for (const std::int32_t page : tokens("remove_sequence", sequence).pages) release_page(page);
  sequences_[static_cast<std::size_t>(sequence)] = {};
}

std::int32_t KvCache::take_page() {
  const std::int32_t page = free_.back();
  free_.pop_back();
  users_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void KvCache::release_page(std::int32_t page) {
  if (--users_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);  // cannot throw: adopt() reserved memory
}

/// Returns the sequence's last page if that page has room for a token, otherwise -1.
std::int32_t KvCache::open_page(const Tokens& of) const {
  return of.length < static_cast<std::int64_t>(of.pages.size()) * shape_.page ? of.pages.back() : -1;
}

/// Returns how many free pages are needed to append `more` tokens to each sequence.
/// Forked sequences may share a last page that is not full.
/// A sequence copies this page to a free page before it appends to it.
/// The last sequence needs no copy, because no other sequence uses the page any more.
std::int64_t KvCache::pages_needed(std::span<const std::int64_t> sequences, std::int64_t more) const {
  if (more == 0) return 0;
  std::int64_t needed = 0;
  for (auto s = sequences.begin(); s != sequences.end(); ++s) {
    const Tokens& of = tokens("append", *s);
    needed += (of.length + more + shape_.page - 1) / shape_.page - static_cast<std::int64_t>(of.pages.size());
    const std::int32_t open = open_page(of);
    if (open < 0 || users_[static_cast<std::size_t>(open)] == 1) continue;
    const auto left = std::count_if(sequences.begin(), s,
                                    [&](std::int64_t other) { return open_page(tokens("append", other)) == open; });
    if (users_[static_cast<std::size_t>(open)] - left > 1) ++needed;
  }
  return needed;
}

void KvCache::copy_page(std::int32_t to, std::int32_t from, std::int64_t rows) {
  for (const Member& m : members(shape_)) {
    if (m.dtype == DType::none) continue;
    copy_rows(rows_of(tensors_.*m.view, to, 0, rows), rows_of(tensors_.*m.view, from, 0, rows));
  }
}

void KvCache::append(std::span<const std::int64_t> sequences, const ConstTensorView& k, const ConstTensorView& v) {
  const auto B = static_cast<std::int64_t>(sequences.size());
  const std::int64_t T = k.shape[2];
  Call call("cache append");
  check_new_tokens(call, {"k", k}, {B, shape_.kv_heads, T, shape_.head_dim});
  check_new_tokens(call, {"v", v}, {B, shape_.kv_heads, T, shape_.value_dim});
  require(v.dtype == k.dtype, "cache append: v has dtype {} but k has dtype {}", dtype_text(v.dtype),
          dtype_text(k.dtype));
  require(T <= shape_.page * std::max<std::int64_t>(shape_.pages, 1),
          "cache append: {} tokens do not fit {} pages of {}", T, shape_.pages, shape_.page);
  const std::int64_t needed = pages_needed(sequences, T);
  for (auto s = sequences.begin(); s != sequences.end(); ++s) {
    tokens("append", *s);
    require(std::find(sequences.begin(), s, *s) == s, "cache append: sequence {} is there twice", *s);
  }
  require(needed <= free_pages(), "cache append: {} tokens for each of {} sequences need {} pages but {} are free", T,
          B, needed, free_pages());
  // Reserves memory before the first change, so that a failed allocation changes nothing.
  // Doubles the capacity, so that appending n tokens one by one takes O(n) time.
  for (const std::int64_t s : sequences) {
    Tokens& t = sequences_[static_cast<std::size_t>(s)];
    const auto pages = static_cast<std::size_t>((t.length + T + shape_.page - 1) / shape_.page);
    if (pages > t.pages.capacity()) t.pages.reserve(std::max(pages, 2 * t.pages.capacity()));
  }
  for (std::int64_t b = 0; b < B; ++b) {
    Tokens& t = sequences_[static_cast<std::size_t>(sequences[static_cast<std::size_t>(b)])];
    if (const std::int64_t n = std::min(T, whole_rows(t) - t.length); n > 0) {
      const auto unrounded = unrounded_rows(t.whole.data(), shape_);
      convert_unchecked(rows_of(unrounded[0], 0, t.length, n), rows_of(k, b, 0, n));
      convert_unchecked(rows_of(unrounded[1], 0, t.length, n), rows_of(v, b, 0, n));
    }
    for (std::int64_t done = 0; done < T;) {
      const std::int64_t row = t.length % shape_.page;
      if (open_page(t) < 0) {
        t.pages.push_back(take_page());
      } else if (users_[static_cast<std::size_t>(t.pages.back())] > 1) {
        const std::int32_t own = take_page();
        copy_page(own, t.pages.back(), row);
        release_page(t.pages.back());
        t.pages.back() = own;
      }
      const std::int64_t n = std::min(T - done, shape_.page - row);
      const std::int32_t page = t.pages.back();
      for (const auto& [to, scale, from] :
           {std::tuple{tensors_.k, tensors_.k_scale, k}, std::tuple{tensors_.v, tensors_.v_scale, v}}) {
        const ConstTensorView rows = rows_of(from, b, done, n);
        if (shape_.dtype == DType::i8) {
          quantize_unchecked(rows_of(to, page, row, n), rows_of(scale, page, row, n), rows);
        } else {
          convert_unchecked(rows_of(to, page, row, n), rows);
        }
      }
      done += n;
      t.length += n;
    }
  }
}

/// Returns how many of the sequence's first keys and values are stored unrounded, in addition to int8.
/// The number is whole_first, or less if slide() has dropped some of these rows.
std::int64_t KvCache::whole_rows(const Tokens& of) const {
  return of.dropped == 0 ? shape_.whole_first : std::min(shape_.whole_first, of.dropped_at);
}

/// Sets k_first and v_first of a batch: the first keys and values of its sequences, in a floating-point type.
/// All sequences get batch.first rows, the largest whole_rows() of any sequence.
/// A sequence with fewer unrounded rows gets dequantized int8 rows for the rest.
/// All rows are then f64, in which scale · row is exact.
void KvCache::place_first_rows(CacheBatch& batch, std::span<const std::int64_t> sequences) const {
  std::int64_t least = shape_.whole_first;
  for (const std::int64_t s : sequences) {
    const std::int64_t rows = whole_rows(tokens("batch", s));
    batch.first = std::max(batch.first, rows);
    least = std::min(least, rows);
  }
  if (batch.first == 0) return;
  batch.first_dtype = least < batch.first ? DType::f64 : shape_.whole_dtype;
  const auto B = static_cast<std::int64_t>(sequences.size());
  const auto set_rows = [&](std::size_t n, std::vector<std::byte>& memory, const TensorView& pages,
                            const TensorView& scales) {
    const Shape shape{B, shape_.kv_heads, batch.first, pages.shape[3]};
    TensorView to{nullptr, batch.first_dtype, shape, contiguous_strides(shape)};
    memory.resize(static_cast<std::size_t>(to.numel()) * dtype_bytes(batch.first_dtype));
    to.data = memory.data();
    for (std::int64_t b = 0; b < B; ++b) {
      const Tokens& t = tokens("batch", sequences[static_cast<std::size_t>(b)]);
      const std::int64_t held = std::min(t.length, batch.first), unrounded = std::min(held, whole_rows(t));
      convert_unchecked(rows_of(to, b, 0, unrounded),
                        rows_of(unrounded_rows(t.whole.data(), shape_)[n], 0, 0, unrounded));
      for (std::int64_t j = unrounded; j < held; ++j) {
        const std::int64_t page = t.pages[static_cast<std::size_t>(j / shape_.page)], row = j % shape_.page;
        dequantize(rows_of(to, b, j, 1), rows_of(pages, page, row, 1), rows_of(scales, page, row, 1));
      }
    }
  };
  set_rows(0, batch.k_first, tensors_.k, tensors_.k_scale);
  set_rows(1, batch.v_first, tensors_.v, tensors_.v_scale);
}

void KvCache::truncate(std::int64_t sequence, std::int64_t length) {
  const std::int64_t held = tokens("truncate", sequence).length;
  require(length >= 0 && length <= held, "cache truncate: length is {} but must be 0 to {}", length, held);
  Tokens& t = sequences_[static_cast<std::size_t>(sequence)];
  const std::int64_t pages = (length + shape_.page - 1) / shape_.page;
  for (; static_cast<std::int64_t>(t.pages.size()) > pages; t.pages.pop_back()) release_page(t.pages.back());
  t.length = length;
  if (length > t.dropped_at) return;
  t.dropped = 0;
  t.dropped_at = -1;
}

void KvCache::slide(std::int64_t sequence, std::int64_t sinks, std::int64_t window) {
  const Tokens& now = tokens("slide", sequence);
  constexpr std::int64_t kMostSinks = std::numeric_limits<std::int64_t>::max() / 2;
  require(sinks >= 0 && sinks <= kMostSinks, "cache slide: sinks is {} but must be in [0, {}]", sinks, kMostSinks);
  require(window >= 0, "cache slide: window is {} but must be at least 0", window);
  const std::int64_t sink_pages = (sinks + shape_.page - 1) / shape_.page;
  require(now.dropped == 0 || now.dropped_at == sink_pages * shape_.page,
          "cache slide: {} sinks fill {} tokens of pages but sequence {} has kept {} so far", sinks,
          sink_pages * shape_.page, sequence, now.dropped_at);
  const std::int64_t window_page = std::max<std::int64_t>(now.length - window, 0) / shape_.page;
  if (window_page <= sink_pages) return;
  Tokens& t = sequences_[static_cast<std::size_t>(sequence)];
  const auto first = t.pages.begin() + sink_pages;
  const auto last = t.pages.begin() + window_page;
  for (auto page = first; page != last; ++page) release_page(*page);
  t.pages.erase(first, last);
  const std::int64_t gone = (window_page - sink_pages) * shape_.page;
  t.length -= gone;
  t.dropped += gone;
  t.dropped_at = sink_pages * shape_.page;
}

std::int64_t KvCache::length(std::int64_t sequence) const { return tokens("length", sequence).length; }

std::int64_t KvCache::position(std::int64_t sequence) const {
  const Tokens& t = tokens("position", sequence);
  return t.length + t.dropped;
}

std::span<const std::int32_t> KvCache::pages(std::int64_t sequence) const { return tokens("pages", sequence).pages; }

std::int64_t KvCache::free_pages() const { return static_cast<std::int64_t>(free_.size()); }

CacheBatch KvCache::batch(std::span<const std::int64_t> sequences, std::int64_t T) const {
  require(T >= 0, "cache batch: T is {} but must be at least 0", T);
  CacheBatch batch;
  batch.tensors = tensors_;
  std::size_t most = 0;
  for (const std::int64_t s : sequences) {
    const Tokens& t = tokens("batch", s);
    require(T <= t.length, "cache batch: T is {} but sequence {} has {} tokens", T, s, t.length);
    most = std::max(most, t.pages.size());
    batch.key_lengths.push_back(t.length);
    batch.query_offsets.push_back(t.length - T);
  }
  batch.block_table.assign(sequences.size() * most, -1);
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const Tokens& t = tokens("batch", sequences[b]);
    std::copy(t.pages.begin(), t.pages.end(), batch.block_table.begin() + static_cast<std::ptrdiff_t>(b * most));
  }
  place_first_rows(batch, sequences);
  return batch;
}

void KvCache::grow(std::int64_t pages) {
  require(memory_ != nullptr, "cache grow: the memory is the caller's; move_to goes on in another");
  CacheShape shape = shape_;
  shape.pages = pages;
  require(pages >= shape_.pages, "cache grow: pages is {} but there are {}", pages, shape_.pages);
  std::unique_ptr<std::byte[]> memory(new std::byte[cache_bytes(shape)]);
  move_to(place_cache(memory.get(), shape));
  memory_ = std::move(memory);
}

void KvCache::move_to(const CacheTensors& tensors) {
  CacheShape shape = shape_;
  shape.pages = tensors.k.shape[0];
  check_tensors(tensors, shape);
  require(shape.pages >= shape_.pages, "cache move_to: k has shape {} but the cache has {} pages",
          shape_text(tensors.k.shape), shape_.pages);
  // New tensors must not stay in memory_, which is freed below.
  check_apart(tensors, tensors_, shape, memory_ == nullptr);
  const CacheTensors old = tensors_;
  const std::int64_t old_pages = shape_.pages;
  adopt(tensors, old_pages);
  for (const Member& m : members(shape_)) {
    if (m.dtype == DType::none || is_same_memory(tensors_.*m.view, old.*m.view)) continue;
    for (std::int64_t page = 0; page < old_pages; ++page) {
      if (users_[static_cast<std::size_t>(page)] == 0) continue;
      copy_rows(rows_of(tensors_.*m.view, page, 0, shape_.page), rows_of(old.*m.view, page, 0, shape_.page));
    }
  }
  memory_.reset();
}

}  // namespace headgate
