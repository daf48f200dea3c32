// SPDX-License-Identifier: Apache-2.0
#include "models/layers/delta_net_cache.hpp"

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

/// Returns the offset in bytes of the convolution's inputs, which follow the states at an aligned address.
std::size_t convolution_offset(const Shape& state, DType dtype) {
  constexpr std::size_t kAlign = Block::kAlign_bytes;
  return (bytes_of(state, dtype) + kAlign - 1) / kAlign * kAlign;
}

Shape convolution_shape(const DeltaNetShape& shape) { return {shape.B, 1, shape.K - 1, shape.channels()}; }
Shape state_shape(const DeltaNetShape& shape) { return {shape.B, shape.Hv, shape.D, shape.Dv}; }

}  // namespace

std::size_t DeltaNetCache::planned_bytes(const DeltaNetShape& shape, DType dtype) {
  return 2 * (convolution_offset(state_shape(shape), dtype) + bytes_of(convolution_shape(shape), dtype));
}

DeltaNetCache::DeltaNetCache(const DeltaNetShape& shape, DType dtype)
    : dtype_(dtype), convolution_shape_(convolution_shape(shape)), state_shape_(state_shape(shape)) {
  require(dtype == DType::f32 || dtype == DType::f64, "DeltaNet: the cache is {} but must be f32 or f64",
          dtype_name(dtype));
  for (Block& block : states_) {
    block = Block{convolution_offset(state_shape_, dtype) + bytes_of(convolution_shape_, dtype)};
  }
  clear();
}

void DeltaNetCache::clear() {
  std::memset(states_[current_].data(), 0, states_[current_].bytes());
  length_ = 0;
  previous_length_.reset();
}

TensorView DeltaNetCache::state(std::size_t index) const {
  return {states_[index].data(), dtype_, state_shape_, contiguous_strides(state_shape_)};
}

TensorView DeltaNetCache::convolution(std::size_t index) const {
  return {states_[index].data() + convolution_offset(state_shape_, dtype_), dtype_, convolution_shape_,
          contiguous_strides(convolution_shape_)};
}

DeltaNetCache::Pass DeltaNetCache::begin() {
  previous_length_.reset();
  const std::size_t other = 1 - current_;
  return {convolution(current_), state(current_), convolution(other), state(other)};
}

void DeltaNetCache::commit(std::int64_t T) {
  current_ = 1 - current_;
  previous_length_ = length_;
  length_ += T;
}

bool DeltaNetCache::can_truncate(std::int64_t length) const {
  return length == 0 || length == length_ || length == previous_length_;
}

void DeltaNetCache::truncate(std::int64_t length) {
  require(can_truncate(length), "DeltaNet: cannot go back from {} tokens to {}: only to 0, or by the last pass",
          length_, length);
  if (length == length_) return;
  if (length != previous_length_) return clear();
  current_ = 1 - current_;
  length_ = length;
  previous_length_.reset();
}

std::size_t DeltaNetCache::step_bytes() const {
  return bytes_of(state_shape_, dtype_) + bytes_of(convolution_shape_, dtype_);
}

}  // namespace headgate::layers
