// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/decoder/decoder.hpp"

namespace headgate::train {

using MemoryPlan = std::vector<models::MemoryItem>;

/// Returns the bytes that this process can still allocate: the memory and swap that the machine has available, or less
/// if a control group limits it. Empty if the kernel does not report it. `root`: prefix of /proc and /sys, for tests.
std::optional<std::uint64_t> available_memory(const std::string& root = "");

/// Returns one line, "not enough memory: 3.20 TB are needed but 22.06 GB are available; the largest items are …". If
/// `available` is unknown or sufficient, it says that the system gave less.
std::string shortage_text(const MemoryPlan& plan, std::optional<std::uint64_t> available);

/// Throws Error with that text if the plan exceeds what is available. `taken`: bytes of the plan that are allocated
/// already.
void require_memory(const MemoryPlan& plan, std::uint64_t taken = 0);

/// Calls make(), which allocates the memory of `plan` except for `taken` bytes that are allocated already. Throws Error
/// with the text above if there is too little, before allocating where possible.
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
