// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

namespace headgate::testing {

/// Returns as many bytes of random words as asked for: text with bigrams that can be learnt.
inline std::string prose(std::size_t bytes, std::uint64_t seed = 1) {
  constexpr const char* kWords[] = {"the ", "gate ", "lets ", "a ", "head ", "rest ", "when ", "tokens ", "say so.\n"};
  std::string text;
  std::uint64_t state = seed;
  while (text.size() < bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    text += kWords[(state >> 33) % std::size(kWords)];
  }
  text.resize(bytes);
  return text;
}

}  // namespace headgate::testing
