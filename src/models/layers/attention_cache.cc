// SPDX-License-Identifier: Apache-2.0
#include "models/layers/attention_cache.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <span>

#include "headgate/tensor.hpp"
#include "models/layers/elementwise.hpp"
#include "models/layers/parallel.hpp"

namespace headgate::layers {
namespace {

/// Number of tokens in a page. With 64 f32 features per head, a page has 16 KiB per head, which the kernel reads
/// contiguously.
constexpr std::int64_t kPage = 64;

std::int64_t pages_of(std::int64_t tokens) { return (tokens + kPage - 1) / kPage; }

CacheShape cache_shape(const GatedAttentionShape& shape, DType dtype, std::int64_t first) {
  return {.kv_heads = shape.Hkv,
          .head_dim = shape.D,
          .value_dim = shape.D,
          .page = kPage,
          .pages = 0,
          .dtype = dtype,
          .whole_first = first};
}

/// Returns the number of bytes of the unrounded keys and values of `tokens` tokens of a sequence.
std::size_t whole_bytes(const CacheShape& shape, std::int64_t tokens) {
  return static_cast<std::size_t>(tokens * shape.kv_heads * (shape.head_dim + shape.value_dim)) *
         dtype_bytes(shape.whole_dtype);
}

}  // namespace

AttentionCache::AttentionCache(const GatedAttentionShape& shape, DType dtype, std::int64_t capacity, std::int64_t first,
                               std::int64_t keep)
    : window_(shape.window),
      capacity_(capacity),
      keep_(keep),
      cache_(cache_shape(shape, dtype, std::min(first, capacity))) {
  for (std::int64_t b = 0; b < shape.B; ++b) sequences_.push_back(cache_.add_sequence());
}

std::int64_t AttentionCache::slots(std::int64_t tokens) { return kPage * pages_of(tokens); }

std::size_t AttentionCache::planned_bytes(const GatedAttentionShape& shape, DType dtype, std::int64_t tokens,
                                          std::int64_t first) {
  CacheShape all = cache_shape(shape, dtype, std::min(first, tokens));
  all.pages = shape.B * pages_of(tokens);
  return headgate::cache_bytes(all) + static_cast<std::size_t>(shape.B) * whole_bytes(all, all.whole_first);
}

void AttentionCache::reserve(std::int64_t T) {
  const auto B = static_cast<std::int64_t>(sequences_.size());
  const std::int64_t held = cache_.shape().pages, length = cache_.length(sequences_.front());
  const std::int64_t needed = B * pages_of(length + T);
  if (needed <= held) return;
  const std::int64_t most = std::max(needed, B * pages_of(capacity_));
  cache_.grow(std::min(most, std::max(needed, held + held / 2)));
}

CacheBatch AttentionCache::append(const ConstTensorView& k, const ConstTensorView& v) {
  reserve(k.shape[2]);
  cache_.append(sequences_, k, v);
  return cache_.batch(sequences_, k.shape[2]);
}

AttentionCache::RoundedKeys AttentionCache::rounded_keys(const ExecutionContext& context) const {
  const CacheShape& s = cache_.shape();
  assert(s.dtype == DType::f32);
  const auto B = static_cast<std::int64_t>(sequences_.size());
  const std::int64_t H = s.kv_heads, D = s.head_dim, S = cache_.length(sequences_.front());
  thread_local std::vector<BFloat16> memory;
  memory.resize(static_cast<std::size_t>(2 * B * H * S * D));
  const auto round = [&](const TensorView& pages, BFloat16* out) {
    for_parts(parts_of(context, B * H, S * D), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::span<const std::int32_t> own = cache_.pages(sequences_[static_cast<std::size_t>(i / H)]);
        for (std::int64_t first = 0; first < S; first += kPage) {
          const std::int64_t page = own[static_cast<std::size_t>(first / kPage)];
          const auto* from = static_cast<const float*>(pages.data) + page * pages.strides[0] + i % H * pages.strides[1];
          const std::array<std::int64_t, 1> count{std::min(kPage, S - first) * D};
          copy_to<BFloat16, float>({out + (i * S + first) * D, count}, View<const float, 1>(from, count), context);
        }
      }
    });
    return make_view(static_cast<const BFloat16*>(out), Shape{B, H, S, D});
  };
  return {round(cache_.tensors().k, memory.data()), round(cache_.tensors().v, memory.data() + B * H * S * D)};
}

void AttentionCache::slide() {
  if (window_ == 0) return;
  const std::int64_t since_mark = marked_ < 0 ? 0 : length() - marked_;
  const std::int64_t kept = window_ + std::max(since_mark, keep_);
  // Keeps all pages while any unrounded token is needed. As soon as KvCache has dropped one unrounded token, it reads
  // the others as rounded. Results would then depend on how many tokens are appended at a time.
  if (length() - kept < cache_.shape().whole_first) return;
  for (const std::int64_t s : sequences_) cache_.slide(s, 0, kept);
}

std::int64_t AttentionCache::length() const { return cache_.position(sequences_.front()); }

std::int64_t AttentionCache::reachable(std::int64_t length) const {
  const std::int64_t dropped = this->length() - cache_.length(sequences_.front());
  return dropped == 0 || length >= dropped + std::max<std::int64_t>(window_ - 1, 1) ? length : 0;
}

void AttentionCache::truncate(std::int64_t length) {
  const std::int64_t dropped = this->length() - cache_.length(sequences_.front());
  for (const std::int64_t s : sequences_) cache_.truncate(s, length == 0 ? 0 : length - dropped);
  if (length < marked_) marked_ = -1;
}

std::size_t AttentionCache::bytes() const {
  const CacheShape& s = cache_.shape();
  return headgate::cache_bytes(s) + sequences_.size() * whole_bytes(s, s.whole_first);
}

std::size_t AttentionCache::step_bytes() const {
  const CacheShape& s = cache_.shape();
  const std::int64_t keys = window_ > 0 ? std::min(window_, length() + 1) : length() + 1;
  std::size_t row = static_cast<std::size_t>(s.head_dim + s.value_dim) * dtype_bytes(s.dtype);
  if (s.dtype == DType::i8) row += 2 * sizeof(float);
  const bool holds_first = cache_.position(sequences_.front()) == cache_.length(sequences_.front());
  const std::int64_t hidden = length() + 1 - keys;  // number of tokens before the window
  const std::int64_t first = holds_first ? std::clamp<std::int64_t>(s.whole_first - hidden, 0, keys) : 0;
  return sequences_.size() * (static_cast<std::size_t>((keys - first) * s.kv_heads) * row + whole_bytes(s, first));
}

}  // namespace headgate::layers
