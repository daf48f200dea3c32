// SPDX-License-Identifier: Apache-2.0
#include "models/generate/stop_texts.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace headgate::generate {
namespace {

/// Returns the length of the longest proper prefix of `text` that `stream` ends with.
std::size_t begun(std::string_view stream, std::string_view text) {
  std::size_t bytes = std::min(stream.size(), text.size() - 1);
  while (!text.starts_with(stream.substr(stream.size() - bytes))) --bytes;
  return bytes;
}

}  // namespace

std::string StopTexts::pass(std::string_view bytes) {
  std::string stream = std::exchange(withheld_, "");
  stream += bytes;
  std::size_t first_begin = std::string::npos, first_end = std::string::npos;
  for (const std::string& text : texts_) {
    const std::size_t begin = stream.find(text);
    if (begin == std::string::npos) continue;
    const std::size_t end = begin + text.size();
    if (end > first_end || (end == first_end && begin > first_begin)) continue;
    first_begin = begin;
    first_end = end;
    found_ = true;
  }
  if (found_) return stream.substr(0, first_begin);
  std::size_t most = 0;
  for (const std::string& text : texts_) most = std::max(most, begun(stream, text));
  withheld_ = stream.substr(stream.size() - most);
  stream.resize(stream.size() - most);
  return stream;
}

std::string StopTexts::rest() { return std::exchange(withheld_, ""); }

}  // namespace headgate::generate
