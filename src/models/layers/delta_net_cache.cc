// SPDX-License-Identifier: Apache-2.0
#include "models/layers/delta_net_cache.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "library/core/check.hpp"

namespace headgate::layers {
namespace {

std::size_t bytes_of(const Shape& shape, DType dtype) {
  std::size_t bytes = dtype_bytes(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

/// Returns the offset in bytes of the convolution's inputs in a block. They follow the states, whose size is rounded up
/// to the alignment.
std::size_t convolution_offset(const Shape& state, DType dtype) {
  constexpr std::size_t kAlign = Block::kAlign_bytes;
  return (bytes_of(state, dtype) + kAlign - 1) / kAlign * kAlign;
}

Shape convolution_shape(const DeltaNetShape& shape) { return {shape.B, 1, shape.K - 1, shape.channels()}; }
Shape state_shape(const DeltaNetShape& shape) { return {shape.B, shape.Hv, shape.D, shape.Dv}; }

}  // namespace

std::size_t DeltaNetCache::planned_bytes(const DeltaNetShape& shape, DType dtype) {
  return least_blocks(0) * (convolution_offset(state_shape(shape), dtype) + bytes_of(convolution_shape(shape), dtype));
}

DeltaNetCache::DeltaNetCache(const DeltaNetShape& shape, DType dtype, std::int64_t keep)
    : dtype_(dtype), keep_(keep), convolution_shape_(convolution_shape(shape)), state_shape_(state_shape(shape)) {
  require(dtype == DType::f32 || dtype == DType::f64, "DeltaNet: the cache is {} but must be f32 or f64",
          dtype_name(dtype));
  require(keep >= 0, "DeltaNet: keep is {} but must be at least 0", keep);
  kept_.reserve(least_blocks(keep_));
  while (blocks_.size() < least_blocks(keep_)) add_block();
  clear();
}

/// Allocates one more block, which holds no state yet. If std::bad_alloc is thrown, the cache is unchanged.
void DeltaNetCache::add_block() {
  blocks_.emplace_back(convolution_offset(state_shape_, dtype_) + bytes_of(convolution_shape_, dtype_));
}

void DeltaNetCache::clear() {
  kept_.assign(1, {});
  std::memset(blocks_.front().data(), 0, blocks_.front().bytes());
}

TensorView DeltaNetCache::state(std::size_t block) const {
  return {blocks_[block].data(), dtype_, state_shape_, contiguous_strides(state_shape_)};
}

TensorView DeltaNetCache::convolution(std::size_t block) const {
  return {blocks_[block].data() + convolution_offset(state_shape_, dtype_), dtype_, convolution_shape_,
          contiguous_strides(convolution_shape_)};
}

ConstTensorView DeltaNetCache::previous_state() const {
  const auto holds = [this](const Kept& kept) { return kept.length == pass_begin_; };
  const auto before = std::find_if(kept_.begin(), kept_.end(), holds);
  assert(before != kept_.end() && length() > pass_begin_);
  return state(before->block);
}

/// Returns the index of a block that no saved state occupies. begin_part() and mark() allocate enough blocks.
std::size_t DeltaNetCache::unused_block() const {
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    const auto holds = [block](const Kept& kept) { return kept.block == block; };
    if (std::none_of(kept_.begin(), kept_.end(), holds)) return block;
  }
  assert(false);
  return 0;
}

void DeltaNetCache::begin_pass() {
  pass_begin_ = length();
  forget();
}

/// Drops the saved states that truncate() need not restore. Keeps the marked states, the state before the last pass,
/// and the states after each of the last `keep` tokens.
void DeltaNetCache::forget() {
  const auto forgotten = [this](const Kept& kept) {
    return !kept.marked && kept.length != pass_begin_ && kept.length < length() - keep_;
  };
  kept_.erase(std::remove_if(kept_.begin(), kept_.end() - 1, forgotten), kept_.end() - 1);
}

DeltaNetCache::Pass DeltaNetCache::begin_part() {
  forget();
  const std::size_t now = kept_.back().block, next = unused_block();
  return {convolution(now), state(now), convolution(next), state(next)};
}

void DeltaNetCache::commit(std::int64_t T) { kept_.push_back({unused_block(), length() + T, false}); }

void DeltaNetCache::mark(std::int64_t most) {
  assert(most >= 1);
  if (kept_.back().marked) return;
  const auto is_marked = [](const Kept& kept) { return kept.marked; };
  const auto marks = std::count_if(kept_.begin(), kept_.end(), is_marked);
  const auto blocks = static_cast<std::size_t>(std::min<std::int64_t>(marks + 1, most)) + least_blocks(keep_);
  kept_.reserve(blocks);
  while (blocks_.size() < blocks) add_block();
  for (auto n = marks; n >= most; --n) std::find_if(kept_.begin(), kept_.end(), is_marked)->marked = false;
  kept_.back().marked = true;
}

std::int64_t DeltaNetCache::reachable(std::int64_t length) const {
  std::int64_t most = 0;
  for (const Kept& kept : kept_) {
    if (kept.length <= length) most = std::max(most, kept.length);
  }
  return most;
}

void DeltaNetCache::truncate(std::int64_t length) {
  require(length >= 0 && reachable(length) == length,
          "DeltaNet: cannot go back from {} tokens to {}: the nearest earlier state is that after {}", this->length(),
          length, reachable(length));
  const auto holds = [length](const Kept& kept) { return kept.length == length; };
  const auto last = std::find_if(kept_.rbegin(), kept_.rend(), holds);
  if (last == kept_.rend()) return clear();
  kept_.erase(last.base(), kept_.end());
}

std::size_t DeltaNetCache::step_bytes() const {
  return bytes_of(state_shape_, dtype_) + bytes_of(convolution_shape_, dtype_);
}

}  // namespace headgate::layers
