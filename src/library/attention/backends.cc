// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "library/core/format.hpp"

namespace headgate {
namespace {

constexpr std::array<const Backend*, 1> kBackends{&kCpuBackend};

std::atomic<const Backend*> forced_backend{nullptr};

const Backend& backend_named(const std::string& name, const char* origin) {
  for (const Backend* backend : kBackends) {
    if (name == backend->name) return *backend;
  }
  throw Error(
      formatted("{} names backend '{}', but this build has: {}", origin, name, comma_separated(supported_backends())));
}

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

const Backend& find_backend(const std::string& name) { return backend_named(name, "find_backend"); }

void set_backend(const std::string& name) {
  forced_backend.store(name.empty() ? nullptr : &backend_named(name, "set_backend"), std::memory_order_release);
}

}  // namespace headgate
