// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/pair_merger.hpp"

#include <algorithm>
#include <utility>

namespace headgate::tokenize {

void PairMerger::add(const std::vector<std::int32_t>& tokens, std::int64_t count) {
  const auto number = static_cast<std::uint32_t>(words_.size());
  words_.push_back({tokens_.size(), static_cast<std::uint32_t>(tokens.size()), count});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (std::size_t i = 1; i < tokens.size(); ++i) increase({tokens[i - 1], tokens[i]}, number);
  if (increased_.size() > 2 * pairs_.size() + 1024) {
    std::sort(increased_.begin(), increased_.end());
    increased_.erase(std::unique(increased_.begin(), increased_.end()), increased_.end());
  }
}

std::optional<TokenPair> PairMerger::most_frequent(std::int64_t least) {
  std::sort(increased_.begin(), increased_.end());
  increased_.erase(std::unique(increased_.begin(), increased_.end()), increased_.end());
  std::for_each(increased_.begin(), increased_.end(), [this](TokenPair pair) { push(pair); });
  increased_.clear();
  while (!queue_.empty() && queue_.top().count >= least) {
    const Candidate top = queue_.top();
    const auto found = pairs_.find(top.pair);
    const std::int64_t count = found == pairs_.end() ? 0 : found->second.count;
    if (count == top.count) return top.pair;
    queue_.pop();
    if (count > 0 && count < top.count) queue_.push({count, top.pair});
  }
  return std::nullopt;
}

void PairMerger::merge(TokenPair pair, std::int32_t token) {
  const auto node = pairs_.extract(pair);
  if (node.empty()) return;
  for (const std::uint32_t word : node.mapped().words) merge_in_word(word, pair, token);
}

void PairMerger::merge_in_word(std::uint32_t number, TokenPair pair, std::int32_t token) {
  Word& word = words_[number];
  std::int32_t* const t = tokens_.data() + word.begin;
  std::uint32_t out = 0;
  for (std::uint32_t i = 0; i < word.size; ++out) {
    if (i + 1 == word.size || t[i] != pair.left || t[i + 1] != pair.right) {
      t[out] = t[i++];
      continue;
    }
    // Updates the counts of pairs after one occurrence of the pair `before` has become the pair `after`. Skips the
    // merged pair itself, because merge() has removed its count.
    const auto replace = [&](TokenPair before, TokenPair after) {
      if (before != pair) decrease(before, number);
      increase(after, number);
    };
    if (out > 0) replace({t[out - 1], pair.left}, {t[out - 1], token});
    if (i + 2 < word.size) replace({pair.right, t[i + 2]}, {token, t[i + 2]});
    t[out] = token;
    i += 2;
  }
  word.size = out;
}

void PairMerger::increase(TokenPair pair, std::uint32_t word) {
  Occurrences& at = pairs_[pair];
  at.count += words_[word].count;
  if (at.words.empty() || at.words.back() != word) at.words.push_back(word);
  increased_.push_back(pair);
}

void PairMerger::decrease(TokenPair pair, std::uint32_t word) {
  const auto found = pairs_.find(pair);
  found->second.count -= words_[word].count;
  if (found->second.count == 0) pairs_.erase(found);
}

void PairMerger::push(TokenPair pair) {
  const auto found = pairs_.find(pair);
  if (found != pairs_.end()) queue_.push({found->second.count, pair});
}

}  // namespace headgate::tokenize
