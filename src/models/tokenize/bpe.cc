// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <queue>

#include "models/io/input_file.hpp"
#include "models/tokenize/byte_alphabet.hpp"
#include "models/tokenize/error.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::size_t kFew = 48;  ///< up to so many tokens, a linear search for the next merge is faster than a heap
constexpr std::size_t kKeptWord = 32;         ///< bytes; longer words seldom occur again
constexpr std::int32_t kKeptWords = 1 << 16;  ///< of one text

}  // namespace

// --- vocabulary ------------------------------------------------------------------------------------------------------

void Vocabulary::add(std::int64_t id, std::string_view spelling) {
  if (id < 0 || id >= kMostTokens)
    refuse("token '{}' has id {}, not 0 to {}", io::printable(spelling), id, kMostTokens - 1);
  if (spelling.empty()) refuse("token {} is empty", id);
  if (const std::int32_t other = find(spelling); other != kNoToken) {
    refuse("token '{}' has two ids, {} and {}", io::printable(spelling), other, id);
  }
  const auto at = static_cast<std::size_t>(id);
  if (at >= by_id_.size()) by_id_.resize(at + 1, StringTable::kAbsent);
  if (by_id_[at] != StringTable::kAbsent) {
    refuse("id {} has two tokens, '{}' and '{}'", id, io::printable(spellings_.key(by_id_[at])),
           io::printable(spelling));
  }
  by_id_[at] = spellings_.insert(spelling);
  ids_.push_back(static_cast<std::int32_t>(id));
}

std::int32_t Vocabulary::find(std::string_view spelling) const {
  const std::int32_t number = spellings_.find(spelling);
  return number == StringTable::kAbsent ? kNoToken : ids_[static_cast<std::size_t>(number)];
}

std::string_view Vocabulary::spelling(std::int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const std::int32_t number = by_id_[static_cast<std::size_t>(id)];
  return number == StringTable::kAbsent ? std::string_view() : spellings_.key(number);
}

// --- merges ----------------------------------------------------------------------------------------------------------

Bpe::Bpe(const Vocabulary& vocabulary, const MergeList& merges, const BpeOptions& options) : options_(options) {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids_[static_cast<std::size_t>(b)] = vocabulary.find(spelling_of({&byte, 1}));
  }
  const std::size_t slots = std::bit_ceil(2 * merges.size() + 2);
  merges_.assign(slots, {kFree, 0, kNoToken});
  shift_ = 64 - std::countr_zero(slots);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& left = merges[rank].first;
    const std::string& right = merges[rank].second;
    const auto token = [&](std::string_view spelling) {
      const std::int32_t id = vocabulary.find(spelling);
      if (id == kNoToken) {
        refuse("merge {}, '{}' and '{}': '{}' is not a token", rank, io::printable(left), io::printable(right),
               io::printable(spelling));
      }
      return id;
    };
    const std::uint64_t pair = pair_of(token(left), token(right));
    merges_[slot(pair)] = {pair, static_cast<std::uint32_t>(rank), token(left + right)};
  }
  if (!options.ignore_merges) return;
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const auto bytes = bytes_of(vocabulary.spelling(id));
    if (!bytes || bytes->empty()) continue;
    words_.insert(*bytes);
    word_ids_.push_back(id);
  }
}

std::uint64_t Bpe::pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

std::size_t Bpe::slot(std::uint64_t pair) const {
  std::size_t at = (pair * factor_) >> shift_;
  while (merges_[at].pair != pair && merges_[at].pair != kFree) at = (at + 1) & (merges_.size() - 1);
  return at;
}

const Bpe::Merge* Bpe::find(std::int32_t left, std::int32_t right) const {
  const Merge& merge = merges_[slot(pair_of(left, right))];
  return merge.pair == kFree ? nullptr : &merge;
}

// --- words -----------------------------------------------------------------------------------------------------------

void Bpe::first_tokens(std::vector<WordToken>& tokens, std::string_view word) const {
  tokens.clear();
  bool fuses = false;  // the last token stands for unknown bytes, and further ones may join it
  for (std::uint32_t at = 0; at < word.size(); ++at) {
    const std::int32_t id = byte_ids_[static_cast<std::uint8_t>(word[at])];
    if (id != kNoToken) {
      tokens.push_back({id, at, at + 1});
      fuses = false;
    } else if (fuses) {
      tokens.back().end = at + 1;
    } else if (options_.unknown != kNoToken) {
      tokens.push_back({options_.unknown, at, at + 1});
      fuses = options_.fuse_unknown;
    }
  }
}

void Bpe::encode(std::vector<WordToken>& tokens, std::string_view word) const {
  if (options_.ignore_merges) {
    if (const std::int32_t number = words_.find(word); number != StringTable::kAbsent) {
      tokens.assign(1, {word_ids_[static_cast<std::size_t>(number)], 0, static_cast<std::uint32_t>(word.size())});
      return;
    }
  }
  first_tokens(tokens, word);
  tokens.size() <= kFew ? merge_few(tokens) : merge_many(tokens);
}

void Bpe::merge_few(std::vector<WordToken>& tokens) const {
  std::array<const Merge*, kFew> merges{};  // of each token with the next one
  std::size_t count = tokens.size();
  for (std::size_t i = 0; i + 1 < count; ++i) merges[i] = find(tokens[i].id, tokens[i + 1].id);
  while (true) {
    std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] == nullptr || merges[i]->rank >= least) continue;
      least = merges[i]->rank;
      at = i;
    }
    if (least == std::numeric_limits<std::uint32_t>::max()) break;
    tokens[at] = {merges[at]->id, tokens[at].begin, tokens[at + 1].end};
    std::move(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 2, tokens.begin() + static_cast<std::ptrdiff_t>(count),
              tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    std::move(merges.begin() + at + 2, merges.begin() + count, merges.begin() + at + 1);
    --count;
    merges[at] = at + 1 < count ? find(tokens[at].id, tokens[at + 1].id) : nullptr;
    if (at > 0) merges[at - 1] = find(tokens[at - 1].id, tokens[at].id);
  }
  tokens.resize(count);
}

/// A merge that was possible when it was queued.
struct Bpe::Candidate {
  std::uint32_t rank;
  std::uint32_t left;  ///< position of the left token
  std::int32_t id;
  std::uint32_t end;  ///< end of the right token

  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
};

void Bpe::merge_many(std::vector<WordToken>& tokens) const {
  // Tokens keep their positions. A token that was merged into its left neighbour gets the id kNoToken.
  const auto count = static_cast<std::uint32_t>(tokens.size());
  std::vector<std::uint32_t> next(count), previous(count);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto note = [&](std::uint32_t left) {
    const std::uint32_t right = next[left];
    if (right == count) return;
    if (const Merge* merge = find(tokens[left].id, tokens[right].id)) {
      queue.push({merge->rank, left, merge->id, tokens[right].end});
    }
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // not used at 0
  }
  for (std::uint32_t i = 0; i < count; ++i) note(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const std::uint32_t left = top.left, right = next[left];
    if (tokens[left].id == kNoToken || right == count || tokens[right].end != top.end) continue;
    const Merge* merge = find(tokens[left].id, tokens[right].id);
    if (merge == nullptr || merge->rank != top.rank) continue;
    tokens[left] = {top.id, tokens[left].begin, top.end};
    tokens[right].id = kNoToken;
    next[left] = next[right];
    if (next[left] != count) previous[next[left]] = left;
    note(left);
    if (left > 0) note(previous[left]);
  }
  std::erase_if(tokens, [](const WordToken& token) { return token.id == kNoToken; });
}

std::span<const WordToken> WordEncoder::encode(std::string_view word) {
  if (word.size() > kKeptWord) {
    bpe_.encode(word_, word);
    return word_;
  }
  if (const std::int32_t number = words_.find(word); number != StringTable::kAbsent) {
    const Range& range = ranges_[static_cast<std::size_t>(number)];
    return {tokens_.data() + range.begin, range.size};
  }
  bpe_.encode(word_, word);
  if (words_.size() < kKeptWords) {
    words_.insert(word);
    ranges_.push_back({tokens_.size(), word_.size()});
    tokens_.insert(tokens_.end(), word_.begin(), word_.end());
  }
  return word_;
}

}  // namespace headgate::tokenize
