// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/arena.hpp"

namespace headgate::layers {

/// Buffers asked for one by one, taken from memory in one piece. Each pointer is set by allocate(), so it must stay
/// where it is until then.
class BufferPlan {
 public:
  struct Item {
    std::string name;
    std::size_t bytes = 0;
  };

  /// Room for `count` elements. Buffers of one name add up to one item of the plan.
  template <typename T>
  void add(const std::string& name, T*& pointer, std::int64_t count) {
    const std::size_t before = arena_.size_bytes();
    const std::size_t offset = arena_.reserve(static_cast<std::size_t>(count), sizeof(T));
    placements_.push_back({&pointer, offset, [](void* where, const Arena& arena, std::size_t at) {
                             *static_cast<T**>(where) = arena.at<T>(at);
                           }});
    tally(name, arena_.size_bytes() - before);
  }

  /// Throws std::bad_alloc when memory runs out.
  void allocate() {
    arena_.allocate();
    for (const Placement& placement : placements_) placement.set(placement.pointer, arena_, placement.offset);
    placements_.clear();
  }

  const std::vector<Item>& items() const { return items_; }
  std::size_t bytes() const { return arena_.size_bytes(); }

 private:
  struct Placement {
    void* pointer;
    std::size_t offset;
    void (*set)(void* where, const Arena& arena, std::size_t at);
  };

  void tally(const std::string& name, std::size_t bytes) {
    for (Item& item : items_) {
      if (item.name == name) {
        item.bytes += bytes;
        return;
      }
    }
    items_.push_back({name, bytes});
  }

  Arena arena_;
  std::vector<Placement> placements_;
  std::vector<Item> items_;
};

}  // namespace headgate::layers
