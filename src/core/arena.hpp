// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace headgate {

/// Scratch memory of one call: buffers are laid out first (`reserve`), allocated at once, then taken.
class Arena {
 public:
  static constexpr std::size_t kAlign_bytes = 128;  // two cache lines: neighbours never share a prefetch pair

  /// Room for `count` elements of `element_bytes`; returns its offset. Throws std::bad_alloc on overflow.
  std::size_t reserve(std::size_t count, std::size_t element_bytes) {
    std::size_t bytes = 0;
    const std::size_t at = size_bytes_;
    if (__builtin_mul_overflow(count, element_bytes, &bytes) ||
        __builtin_add_overflow(bytes, kAlign_bytes - 1, &bytes) ||
        __builtin_add_overflow(at, bytes / kAlign_bytes * kAlign_bytes, &size_bytes_)) {
      throw std::bad_alloc();
    }
    return at;
  }

  void allocate() { memory_.reset(static_cast<std::byte*>(::operator new(size_bytes_, std::align_val_t{kAlign_bytes}))); }

  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_.get() + offset);
  }

  std::size_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{kAlign_bytes}); }
  };
  std::size_t size_bytes_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace headgate
