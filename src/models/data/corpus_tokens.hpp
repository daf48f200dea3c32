// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "models/data/corpus.hpp"
#include "models/io/work.hpp"
#include "models/tokenize/tokenizer.hpp"

namespace headgate::train {

/// Range [begin, end) of bytes of a corpus.
struct TextRange {
  std::int64_t begin, end;
};

/// Tokenizes the range `text` of the corpus, without special tokens. Calls body(id, bytes) for each token, where
/// `bytes` is the number of text bytes that the token represents. A byte that several tokens share counts only for the
/// first of them. Returns the number of text bytes that have no token. Uses O(1) memory.
///
/// Reports progress as a fraction of the range `whole`, which contains `text`.
template <class Body>
std::uint64_t for_tokens(const Corpus& corpus, TextRange text, TextRange whole, const tokenize::Tokenizer& tokenizer,
                         const Body& body) {
  std::size_t counted = 0;  // number of text bytes counted so far
  std::uint64_t left_out = 0;
  const auto take = [&](const tokenize::Encoding& tokens) {
    left_out += tokens.left_out;
    for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
      const tokenize::Span& span = tokens.spans[i];
      const std::size_t first = std::max(counted, span.begin);
      body(tokens.ids[i], std::max(first, span.end) - first);
      counted = std::max(counted, span.end);
    }
  };
  const auto encoder = tokenizer.stream({.add_special = false, .spans = true});
  std::int64_t read = text.begin - whole.begin;
  corpus.for_pieces(text.begin, text.end, [&](const std::uint8_t* data, std::int64_t count) {
    constexpr std::int64_t kPart = std::int64_t{1} << 16;
    for (std::int64_t at = 0; at < count; at += kPart) {
      const std::int64_t bytes = std::min(kPart, count - at);
      take(encoder->next({reinterpret_cast<const char*>(data + at), static_cast<std::size_t>(bytes)}));
      read += bytes;
      io::report_work("tokenizing ", corpus.name(),
                      static_cast<double>(read) / static_cast<double>(whole.end - whole.begin));
    }
  });
  take(encoder->finish());
  return left_out;
}

}  // namespace headgate::train
