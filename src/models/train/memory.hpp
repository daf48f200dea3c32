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

/// Returns the number of bytes that this process can still allocate: the available memory and swap of the machine, or
/// less if a control group limits the process. Empty if the kernel does not report it. `root`: prefix of /proc and
/// /sys, for tests.
std::optional<std::uint64_t> available_memory(const std::string& root = "");

/// Returns one line, "not enough memory: 3.20 TB are needed but 22.06 GB are available; the largest items are …". If
/// `available` is unknown or sufficient, the line says instead that the system gave less.
std::string shortage_text(const MemoryPlan& plan, std::optional<std::uint64_t> available);

/// Throws Error with shortage_text() if the plan exceeds the available memory. `taken`: bytes of the plan that are
/// already allocated.
void require_memory(const MemoryPlan& plan, std::uint64_t taken = 0);

/// Calls make(), which allocates the memory of `plan` except for `taken` bytes that are already allocated. Throws Error
/// with shortage_text() if there is too little memory, before the allocation where possible.
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
