// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/unigram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "models/tokenize/error.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::size_t kMostBytes = std::size_t{8} << 20;  ///< maximum total size of all spellings in bytes

}  // namespace

Unigram::Unigram(const Vocabulary& vocabulary, const std::vector<double>& scores, const UnigramOptions& options)
    : options_(options), scores_(scores), ids_{kNoToken} {
  if (options.byte_fallback) byte_ids_ = find_byte_tokens(vocabulary);
  std::size_t bytes = 0;
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) bytes += vocabulary.spelling(id).size();
  if (bytes > kMostBytes) refuse("the tokens have {} bytes, more than the limit of {}", bytes, kMostBytes);
  const std::size_t slots = std::bit_ceil(2 * bytes + 2);
  edges_.assign(slots, {kFree, 0});
  shift_ = 64 - std::countr_zero(slots);
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!std::isnan(scores_[static_cast<std::size_t>(id)])) insert(vocabulary.spelling(id), id);
  }
}

std::size_t Unigram::slot(std::uint64_t key) const {
  std::size_t at = (key * factor_) >> shift_;
  while (edges_[at].key != key && edges_[at].key != kFree) at = (at + 1) & (edges_.size() - 1);
  return at;
}

std::uint32_t Unigram::next(std::uint32_t node, char byte) const {
  const Edge& edge = edges_[slot(std::uint64_t{node} << 8 | static_cast<std::uint8_t>(byte))];
  return edge.key == kFree ? 0 : edge.node;
}

void Unigram::insert(std::string_view spelling, std::int32_t id) {
  std::uint32_t node = 0;
  for (const char byte : spelling) {
    const std::uint64_t key = std::uint64_t{node} << 8 | static_cast<std::uint8_t>(byte);
    Edge& edge = edges_[slot(key)];
    if (edge.key == kFree) {
      edge = {key, static_cast<std::uint32_t>(ids_.size())};
      ids_.push_back(kNoToken);
    }
    node = edge.node;
  }
  ids_[node] = id;
}

std::vector<Unigram::Best> Unigram::search(std::string_view word) const {
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&best](std::size_t begin, std::size_t end, std::int32_t id, double score) {
    if (best[end].reached && score <= best[end].score) return;
    best[end] = {score, static_cast<std::uint32_t>(begin), id, true};
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t character = std::max<std::size_t>(first_code_point(word.substr(at)).bytes, 1);
    bool known = false;
    std::uint32_t node = 0;
    for (std::size_t end = at; end < word.size();) {
      node = next(node, word[end]);
      if (node == 0) break;
      ++end;
      const std::int32_t id = ids_[node];
      if (id == kNoToken) continue;
      offer(at, end, id, scores_[static_cast<std::size_t>(id)] + best[at].score);
      known = known || end == at + character;
    }
    if (!known) offer(at, at + character, kNoToken, options_.unknown_score + best[at].score);
    at += character;
  }
  return best;
}

void Unigram::encode(std::vector<WordToken>& tokens, std::string_view word) const {
  tokens.clear();
  const std::vector<Best> best = search(word);
  const auto is_unknown = [this](std::int32_t id) { return id == kNoToken || id == options_.unknown; };
  for (auto end = static_cast<std::uint32_t>(word.size()); end > 0;) {
    std::uint32_t begin = best[end].begin;
    if (!is_unknown(best[end].id)) {
      tokens.push_back({best[end].id, begin, end});
    } else {
      while (begin > 0 && is_unknown(best[begin].id)) begin = best[begin].begin;
      add_unknown(tokens, word, begin, end);
    }
    end = begin;
  }
  std::reverse(tokens.begin(), tokens.end());
}

void Unigram::add_unknown(std::vector<WordToken>& tokens, std::string_view word, std::uint32_t begin,
                          std::uint32_t end) const {
  std::uint32_t node = 0;
  for (std::uint32_t at = begin; at == begin || (at < end && node != 0); ++at) node = next(node, word[at]);
  // Uses the token for word[begin, end), if there is one. The search preferred unknown characters to this token only
  // because the sum of their scores is larger than the token's score.
  const std::int32_t whole = node == 0 ? kNoToken : ids_[node];
  if (whole != kNoToken) {
    tokens.push_back({whole, begin, end});
  } else if (byte_ids_) {
    for (std::uint32_t at = end; at-- > begin;) {
      tokens.push_back({(*byte_ids_)[static_cast<std::uint8_t>(word[at])], at, at + 1});
    }
  } else if (options_.unknown != kNoToken) {
    tokens.push_back({options_.unknown, begin, end});
  }
}

}  // namespace headgate::tokenize
