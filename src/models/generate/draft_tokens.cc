// SPDX-License-Identifier: Apache-2.0
#include "models/generate/draft_tokens.hpp"

#include <algorithm>
#include <iterator>

namespace headgate::generate {

std::vector<std::int32_t> DraftTokens::next(std::int64_t most) const {
  if (most <= 0) return {};
  for (std::ptrdiff_t n = kMost; n >= kFewest; --n) {
    if (std::ssize(text_) <= n) continue;
    const auto found = std::search(text_.rbegin() + 1, text_.rend(), text_.rbegin(), text_.rbegin() + n);
    if (found == text_.rend()) continue;
    const auto from = found.base();  // points to the first token after the earlier occurrence of the last n tokens
    return {from, from + std::min<std::ptrdiff_t>(most, text_.end() - from)};
  }
  return {};
}

}  // namespace headgate::generate
