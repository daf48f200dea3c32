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

/// The name of some buffers, and their total size.
struct WorkspaceItem {
  std::string name;
  std::size_t bytes = 0;
};

/// A linear allocator of named buffers, aligned to Block::kAlign_bytes. Code that allocates buffers runs twice. The
/// first run has no memory and counts the bytes. The second run places the buffers in memory of that size. The class
/// Placed runs both.
class Workspace {
 public:
  /// Creates a workspace that only counts bytes. It returns views with a shape and null data. Stores the total size of
  /// the buffers of each name in `items`, which may be null.
  explicit Workspace(std::vector<WorkspaceItem>* items = nullptr) : items_(items) {}
  /// Creates a workspace that places buffers in `memory`, which is aligned to Block::kAlign_bytes. A counting workspace
  /// that allocates the same buffers returns the required size from bytes().
  explicit Workspace(std::byte* memory) : memory_(memory) {}

  /// Returns a dense array of uninitialised elements. Throws std::bad_alloc if the number of bytes, of this array or in
  /// total, exceeds 63 bits.
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

  /// Returns the number of allocated bytes, including padding.
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

// In the functions below, Buffers is a struct of views. The constructor Buffers(Workspace&, args…) allocates the views'
// memory.

/// Returns the number of bytes that Buffers needs.
template <class Buffers, typename... Args>
std::size_t count_bytes(const Args&... args) {
  Workspace count;
  Buffers(count, args...);
  return count.bytes();
}

/// Places Buffers in `memory`, which is aligned to Block::kAlign_bytes and has count_bytes() bytes.
template <class Buffers, typename... Args>
Buffers place_buffers(std::byte* memory, const Args&... args) {
  Workspace place(memory);
  return Buffers(place, args...);
}

/// A struct of buffers, together with an object of type `Memory` that holds their memory. The default, an Arena,
/// provides scratch memory for one call.
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
