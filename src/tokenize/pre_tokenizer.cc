// SPDX-License-Identifier: Apache-2.0
#include "tokenize/pre_tokenizer.hpp"

#include "tokenize/utf8.hpp"

namespace headgate::tokenize {

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

/// Takes matches and what lies between them, from left to right, and makes pieces of them.
class Pieces {
 public:
  Pieces(std::vector<Span>& pieces, const SplitStep& step) : pieces_(pieces), step_(step) {}

  void add(Span span, bool matched) {
    if (span.begin == span.end) return;
    matched = matched != step_.invert;
    const bool joins = !pieces_.empty() && joins_last(matched);
    last_matched_ = matched;
    if (joins) {
      pieces_.back().end = span.end;
    } else if (!matched || step_.behavior != SplitBehavior::removed) {
      pieces_.push_back(span);
    }
  }

 private:
  bool joins_last(bool matched) const {
    switch (step_.behavior) {
      case SplitBehavior::contiguous: return matched == last_matched_;
      case SplitBehavior::merged_with_previous: return matched && !last_matched_;
      case SplitBehavior::merged_with_next: return !matched && last_matched_;
      default: return false;
    }
  }

  std::vector<Span>& pieces_;
  const SplitStep& step_;
  bool last_matched_ = false;
};

}  // namespace

void cut(std::vector<Span>& pieces, std::string_view text, const SplitStep& step, PatternSearch* search) {
  pieces.clear();
  if (!step.pattern) {
    pieces.push_back({0, text.size()});
    return;
  }
  Pieces out(pieces, step);
  std::size_t done = 0;
  Match match;
  for (std::size_t from = 0; from < text.size() && search->find(match, text, from);) {
    out.add({done, match.begin}, false);
    out.add({match.begin, match.end}, true);
    done = match.end;
    from = match.end;
    if (match.begin == match.end && from < text.size()) from += first_code_point(text.substr(from)).bytes;
  }
  out.add({done, text.size()}, false);
}

}  // namespace headgate::tokenize
