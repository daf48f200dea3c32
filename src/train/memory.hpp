// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/decoder.hpp"

namespace headgate::train {

using MemoryPlan = std::vector<models::MemoryItem>;

/// Bytes that this process could still take: what the machine has free or can free at once, or less where a control
/// group limits it. Unknown where the kernel does not say. `root`: where /proc and /sys lie, for tests.
std::optional<std::uint64_t> available_memory(const std::string& root = "");

/// "not enough memory: 3.20 TB are needed but 22.06 GB are available; the largest items are …", one line. `available`
/// unknown, or more than enough: the system gave less than that.
std::string shortage_text(const MemoryPlan& plan, std::optional<std::uint64_t> available);

/// Throws Error with that text when the plan exceeds what is available. `taken`: bytes of the plan that are taken.
void require_memory(const MemoryPlan& plan, std::uint64_t taken = 0);

/// make(), which takes the memory of the plan, but for `taken` bytes that are taken already. Throws Error with the text
/// above when there is too little, before any is taken where that can be known.
template <class Make>
auto with_memory(const MemoryPlan& plan, std::uint64_t taken, const Make& make) {
  require_memory(plan, taken);
  try {
    return make();
  } catch (const std::bad_alloc&) {
    throw Error(shortage_text(plan, available_memory()));
  }
}

}  // namespace headgate::train
