// SPDX-License-Identifier: Apache-2.0
#include "attention/backend.hpp"

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "core/check.hpp"
#include "headgate/runtime.hpp"

namespace headgate {
namespace {

constexpr std::array<const Backend*, 1> kBackends{&kCpuBackend};

std::atomic<const Backend*> forced_backend{nullptr};

}  // namespace

std::span<const Backend* const> backends() { return kBackends; }

const Backend& backend_for(const Problem& problem) {
  return choose_backend(kBackends, forced_backend.load(std::memory_order_acquire), problem);
}

std::vector<std::string> supported_backends() {
  std::vector<std::string> names;
  names.reserve(kBackends.size());
  for (const Backend* backend : kBackends) names.emplace_back(backend->name);
  return names;
}

void set_backend(const std::string& name) {
  const Backend* found = nullptr;
  for (const Backend* backend : kBackends) {
    if (name == backend->name) found = backend;
  }
  require(found != nullptr || name.empty(), "set_backend names backend '{}', but this build has: {}", name,
          fmt::join(supported_backends(), ", "));
  forced_backend.store(found, std::memory_order_release);
}

}  // namespace headgate
