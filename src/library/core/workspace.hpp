// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "library/core/arena.hpp"
#include "library/core/view.hpp"

namespace headgate {

/// Memory asked for under one name.
struct WorkspaceItem {
  std::string name;
  std::size_t bytes = 0;
};

/// Hands out buffers by name and shape, one after another, each at a multiple of Block::kAlign_bytes. The same code
/// runs on it twice: first without memory, which counts the bytes, then on memory of that size, which places the
/// buffers (Placed does both).
class Workspace {
 public:
  /// Counts: every view that it hands out has its shape and null data. `items`, unless null, receives what each name
  /// takes; buffers of one name add up.
  explicit Workspace(std::vector<WorkspaceItem>* items = nullptr) : items_(items) {}
  /// Places in `memory`, aligned to Block::kAlign_bytes, of as many bytes as the same calls counted.
  explicit Workspace(std::byte* memory) : memory_(memory) {}

  /// A dense array of T; its elements are not initialised. Throws std::bad_alloc if its size in bytes, or that of the
  /// whole, does not fit 63 bits.
  template <typename T, typename... Sizes>
  View<T, sizeof...(Sizes)> take(const char* name, Sizes... sizes) {
    const std::array<std::int64_t, sizeof...(Sizes)> shape{static_cast<std::int64_t>(sizes)...};
    std::int64_t bytes = sizeof(T);  // NOLINT(bugprone-sizeof-expression): T may be a pointer
    for (const std::int64_t size : shape) {
      assert(size >= 0);
      if (__builtin_mul_overflow(bytes, size, &bytes)) throw std::bad_alloc();
    }
    std::byte* const at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    add(name, bytes);
    return {reinterpret_cast<T*>(at), shape};
  }

  /// Bytes handed out, gaps included.
  std::size_t bytes() const { return static_cast<std::size_t>(bytes_); }

 private:
  void add(const char* name, std::int64_t bytes) {
    constexpr std::int64_t kAlign = Block::kAlign_bytes;
    const std::int64_t before = bytes_;
    if (bytes > std::numeric_limits<std::int64_t>::max() - kAlign ||
        __builtin_add_overflow(bytes_, (bytes + kAlign - 1) / kAlign * kAlign, &bytes_)) {
      throw std::bad_alloc();
    }
    if (items_ != nullptr) record(name, static_cast<std::size_t>(bytes_ - before));
  }

  void record(const char* name, std::size_t bytes) {
    for (WorkspaceItem& item : *items_) {
      if (item.name == name) {
        item.bytes += bytes;
        return;
      }
    }
    items_->push_back({name, bytes});
  }

  std::byte* memory_ = nullptr;
  std::int64_t bytes_ = 0;
  std::vector<WorkspaceItem>* items_ = nullptr;
};

// Buffers is a struct of views whose constructor Buffers(Workspace&, args…) takes them.

/// Bytes that Buffers need.
template <class Buffers, typename... Args>
std::size_t count_bytes(const Args&... args) {
  Workspace count;
  Buffers(count, args...);
  return count.bytes();
}

/// Buffers in `memory`, aligned to Block::kAlign_bytes, of count_bytes.
template <class Buffers, typename... Args>
Buffers place_buffers(std::byte* memory, const Args&... args) {
  Workspace place(memory);
  return Buffers(place, args...);
}

/// Buffers and the memory that they lie in. Memory owns the bytes (Arena: a call's scratch).
template <class Buffers, class Memory = Arena>
class Placed {
 public:
  /// Throws std::bad_alloc when memory runs out.
  template <typename... Args>
  explicit Placed(const Args&... args)
      : memory_(count_bytes<Buffers>(args...)), buffers_(place_buffers<Buffers>(memory_.data(), args...)) {}

  const Buffers& operator*() const { return buffers_; }
  const Buffers* operator->() const { return &buffers_; }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  Memory memory_;
  Buffers buffers_;
};

}  // namespace headgate
