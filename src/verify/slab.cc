// SPDX-License-Identifier: Apache-2.0
#include "verify/slab.hpp"

#include <algorithm>

#include "library/core/element.hpp"

namespace headgate::verify {
namespace {

// Number of elements in a guard zone: odd, so that tensors are not aligned to vectors; more than the widest vector has.
constexpr std::size_t kGuardElements = 67;

template <typename Visit>
void for_each_offset(const TensorView& view, const Visit& visit) {
  for (std::int64_t a = 0; a < view.shape[0]; ++a) {
    for (std::int64_t b = 0; b < view.shape[1]; ++b) {
      for (std::int64_t c = 0; c < view.shape[2]; ++c) {
        for (std::int64_t d = 0; d < view.shape[3]; ++d) visit(offset_of(view, a, b, c, d));
      }
    }
  }
}

}  // namespace

std::uint8_t* Slab::allocate(DType dtype, std::int64_t elements) {
  const std::size_t size = dtype_bytes(dtype);
  const std::size_t count = elements;
  if (placement_ == Placement::guarded) {
    bytes_.assign((count + 2 * kGuardElements) * size, 0xFF);
    return bytes_.data() + kGuardElements * size;
  }
  bytes_.assign(count * size + kAligned_bytes - 1, 0xFF);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
  return bytes_.data() + (kAligned_bytes - address % kAligned_bytes) % kAligned_bytes;
}

TensorView Slab::place(DType dtype, const Shape& shape, const Shape& strides) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    const std::int64_t reach = strides[d] * std::max<std::int64_t>(shape[d] - 1, 0);
    low += std::min<std::int64_t>(reach, 0);
    high += std::max<std::int64_t>(reach, 0);
  }
  std::uint8_t* first = allocate(dtype, high - low + 1);
  views_ = {{first + -low * dtype_bytes(dtype), dtype, shape, strides}};
  return views_.front();
}

std::vector<TensorView> Slab::place_fused(DType dtype, const std::vector<Shape>& shapes) {
  const std::int64_t batches = shapes.front()[0];
  const std::int64_t rows = shapes.front()[2];
  std::int64_t width = 0;
  for (const Shape& s : shapes) width += s[1] * s[3];
  std::uint8_t* first = allocate(dtype, batches * rows * width);
  views_.clear();
  std::int64_t column = 0;
  for (const Shape& s : shapes) {
    views_.push_back({first + column * dtype_bytes(dtype), dtype, s, {rows * width, s[3], width, 1}});
    column += s[1] * s[3];
  }
  return views_;
}

void Slab::poison() { std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{0xFF}); }

bool Slab::spilled() const {
  std::vector<char> covered(bytes_.size(), 0);
  for (const TensorView& view : views_) {
    const auto base = static_cast<const std::uint8_t*>(view.data) - bytes_.data();
    const std::int64_t size = dtype_bytes(view.dtype);
    for_each_offset(view,
                    [&](std::int64_t offset) { std::fill_n(covered.begin() + base + offset * size, size, char{1}); });
  }
  for (std::size_t n = 0; n < bytes_.size(); ++n) {
    if (covered[n] == 0 && bytes_[n] != 0xFF) return true;
  }
  return false;
}

Slab& Slabs::add(const std::string& name, Placement placement) {
  slabs_.emplace_back(name, std::make_unique<Slab>(placement));
  return *slabs_.back().second;
}

void Slabs::poison() {
  for (auto& [name, slab] : slabs_) slab->poison();
}

std::optional<std::string> Slabs::spilled() const {
  for (const auto& [name, slab] : slabs_) {
    if (slab->spilled()) return name;
  }
  return std::nullopt;
}

std::vector<std::uint8_t> Slabs::bytes() const {
  std::vector<std::uint8_t> all;
  for (const auto& [name, slab] : slabs_) all.insert(all.end(), slab->bytes().begin(), slab->bytes().end());
  return all;
}

bool is_poison(const TensorView& view, std::int64_t offset) {
  const std::int64_t size = dtype_bytes(view.dtype);
  const auto* first = static_cast<const std::uint8_t*>(view.data) + offset * size;
  return std::all_of(first, first + size, [](std::uint8_t byte) { return byte == 0xFF; });
}

}  // namespace headgate::verify
