// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"

#include <string>

#include "library/core/check.hpp"
#include "library/core/format.hpp"

namespace headgate {

const Backend& choose_backend(std::span<const Backend* const> list, const Backend* forced, const Problem& problem) {
  const Backend* only = problem.context.backend != nullptr ? problem.context.backend : forced;
  if (only != nullptr) {
    const char* reason = only->declines(problem);
    if (reason != nullptr) throw Error(formatted("backend {}: {}", only->name, reason));
    return *only;
  }
  std::string reasons;
  for (const Backend* backend : list) {
    const char* reason = backend->declines(problem);
    if (reason == nullptr) return *backend;
    reasons += formatted("{}backend {}: {}", reasons.empty() ? "" : "; ", backend->name, reason);
  }
  throw Error(reasons);
}

}  // namespace headgate
