// SPDX-License-Identifier: Apache-2.0
// Runs one parser under libFuzzer: the target that HEADGATE_FUZZ_TARGET names.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fuzz/targets.hpp"

namespace {

const headgate::fuzz::Target& chosen() {
  for (const auto& target : headgate::fuzz::targets()) {
    if (std::string_view(target.name) == HEADGATE_FUZZ_TARGET) return target;
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const headgate::fuzz::Target& target = chosen();
  target.run(std::string(reinterpret_cast<const char*>(data), size));  // NOLINT: bytes as they come
  return 0;
}
