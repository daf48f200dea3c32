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

/// Returns the number of bytes that this process can still allocate. This is the machine's available memory and swap,
/// or less if a control group limits the process. Returns nothing if the kernel does not report it. `root` is put in
/// front of /proc and /sys, for tests.
std::optional<std::uint64_t> available_memory(const std::string& root = "");

/// Returns one line: "not enough memory: 3.20 TB are needed but 22.06 GB are available; the largest items are …". If
/// `available` is unknown or sufficient, the line says "and the system gave less" in place of "but … are available".
std::string shortage_text(const MemoryPlan& plan, std::optional<std::uint64_t> available);

/// Throws Error with shortage_text() if `plan` needs more than the available memory. `taken` bytes of it are already
/// allocated.
void require_memory(const MemoryPlan& plan, std::uint64_t taken = 0);

/// Calls require_memory(), then make(). make() allocates the memory of `plan`, of which `taken` bytes are already
/// allocated. Throws Error with shortage_text() if make() throws std::bad_alloc.
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
