// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <optional>
#include <queue>

#include "models/io/input_file.hpp"
#include "models/tokenize/byte_alphabet.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

/// With at most this many tokens, a linear search for the next merge is faster than a heap.
constexpr std::size_t kFew = 48;

}  // namespace

// --- merges ----------------------------------------------------------------------------------------------------------

std::vector<RankedMerge> ranked_merges(const Vocabulary& vocabulary, const MergeList& merges) {
  std::vector<RankedMerge> out;
  out.reserve(merges.size());
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
    out.push_back({token(left), token(right), token(left + right), static_cast<std::uint32_t>(rank)});
  }
  return out;
}

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<RankedMerge>& merges, const BpeOptions& options)
    : options_(options) {
  options.characters ? read_characters(vocabulary) : read_bytes(vocabulary);
  const bool all_bytes = std::find(byte_ids_.begin(), byte_ids_.end(), kNoToken) == byte_ids_.end();
  if (options.unknown == kNoToken && !all_bytes) measure_tokens(vocabulary);
  const std::size_t slots = std::bit_ceil(2 * merges.size() + 2);
  merges_.assign(slots, {kFree, 0, kNoToken});
  shift_ = 64 - std::countr_zero(slots);
  for (const RankedMerge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    merges_[slot(pair)] = {pair, merge.rank, merge.id};
  }
  if (options.ignore_merges) {
    keep_words(vocabulary);
  } else if (options.characters) {
    find_cuts(vocabulary, merges);
  }
}

void Bpe::read_bytes(const Vocabulary& vocabulary) {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids_[static_cast<std::size_t>(b)] = vocabulary.find(spelling_of({&byte, 1}));
  }
}

void Bpe::read_characters(const Vocabulary& vocabulary) {
  byte_ids_.fill(kNoToken);
  if (options_.byte_fallback) {
    if (const auto ids = find_byte_tokens(vocabulary)) byte_ids_ = *ids;
  }
  ascii_ids_.fill(kNoToken);
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view spelling = vocabulary.spelling(id);
    const CodePoint c = first_code_point(spelling);
    if (c.bytes == 0 || c.bytes != spelling.size()) continue;
    if (c.bytes == 1) {
      ascii_ids_[c.value] = id;
    } else {
      characters_.insert(spelling);
      character_ids_.push_back(id);
    }
  }
}

void Bpe::measure_tokens(const Vocabulary& vocabulary) {
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view spelling = vocabulary.spelling(id);
    const auto bytes = options_.characters ? std::nullopt : bytes_of(spelling);
    token_bytes_.push_back(static_cast<std::uint32_t>(bytes ? bytes->size() : spelling.size()));
  }
}

std::size_t Bpe::spelled_bytes(const WordToken& token) const {
  return token_bytes_.empty() ? token.end - token.begin : token_bytes_[static_cast<std::size_t>(token.id)];
}

void Bpe::keep_words(const Vocabulary& vocabulary) {
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view spelling = vocabulary.spelling(id);
    if (spelling.empty()) continue;
    const auto bytes = options_.characters ? std::string(spelling) : bytes_of(spelling);
    if (!bytes || bytes->empty()) continue;
    words_.insert(*bytes);
    word_ids_.push_back(id);
  }
}

/// Finds where a word can be cut into pieces that are encoded separately. A merge joins the last character of its left
/// token and the first character of its right token. Records all such pairs of characters. Between any other two
/// characters, a cut is possible, because no merge joins them.
void Bpe::find_cuts(const Vocabulary& vocabulary, const std::vector<RankedMerge>& merges) {
  // Leaves cuts disabled if a merge uses a byte token or the unknown token. The spellings of these tokens are not the
  // text that they represent. Their characters therefore do not tell where that text can be cut.
  std::vector<bool> misspelt(static_cast<std::size_t>(vocabulary.size()));
  const auto mark = [&misspelt](std::int32_t id) {
    if (id != kNoToken) misspelt[static_cast<std::size_t>(id)] = true;
  };
  for (const std::int32_t id : byte_ids_) mark(id);
  mark(options_.unknown);
  for (const RankedMerge& merge : merges) {
    if (misspelt[static_cast<std::size_t>(merge.left)] || misspelt[static_cast<std::size_t>(merge.right)]) return;
    joined_.insert(last_code_point(vocabulary.spelling(merge.left)).value,
                   first_code_point(vocabulary.spelling(merge.right)).value);
  }
  cuts_ = true;
}

bool Bpe::may_cut(char32_t before, char32_t after) const {
  if (!cuts_ || joined_.contains(before, after)) return false;
  if (byte_ids_[0] != kNoToken || (options_.unknown != kNoToken && !options_.fuse_unknown)) return true;
  const bool before_known = id_of(before) != kNoToken, after_known = id_of(after) != kNoToken;
  // Forbids a cut between two characters if it could change the tokens:
  // - If characters without a token are dropped, the neighbours of a dropped character may merge. Both characters at a
  //   cut therefore need a token.
  // - If adjacent characters without a token share one unknown token (fuse_unknown), a cut between them would give two.
  //   At least one of the two characters at a cut therefore needs a token.
  return options_.unknown == kNoToken ? before_known && after_known : before_known || after_known;
}

std::int32_t Bpe::id_of(char32_t character) const {
  if (character < ascii_ids_.size()) return ascii_ids_[character];
  std::string spelling;
  append_utf8(spelling, character);
  return id_of(spelling);
}

std::int32_t Bpe::id_of(std::string_view character) const {
  if (character.size() == 1 && static_cast<std::uint8_t>(character[0]) < ascii_ids_.size()) {
    return ascii_ids_[static_cast<std::uint8_t>(character[0])];
  }
  const std::int32_t number = characters_.find(character);
  return number == StringTable::kAbsent ? kNoToken : character_ids_[static_cast<std::size_t>(number)];
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
  bool fuses = false;  // whether the last token is an unknown token that the next character may extend
  const auto add = [&](std::int32_t id, std::uint32_t begin, std::uint32_t end) {
    if (id != kNoToken) {
      tokens.push_back({id, begin, end});
      fuses = false;
    } else if (fuses) {
      tokens.back().end = end;
    } else if (options_.unknown != kNoToken) {
      tokens.push_back({options_.unknown, begin, end});
      fuses = options_.fuse_unknown;
    }
  };
  for (std::uint32_t at = 0; at < word.size();) {
    const std::size_t character = options_.characters ? first_code_point(word.substr(at)).bytes : 1;
    const std::uint32_t end = at + static_cast<std::uint32_t>(std::max<std::size_t>(character, 1));
    const std::int32_t id = options_.characters ? id_of(word.substr(at, end - at)) : kNoToken;
    if (id != kNoToken || (options_.characters && byte_ids_[0] == kNoToken)) {
      add(id, at, end);
    } else {
      for (std::uint32_t i = at; i < end; ++i) add(byte_ids_[static_cast<std::uint8_t>(word[i])], i, i + 1);
    }
    at = end;
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
  std::array<const Merge*, kFew> merges{};  // merges[i] joins tokens i and i + 1; null if no merge does
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

/// A merge in the queue. The candidate is outdated once another merge has changed its left or right token.
struct Bpe::Candidate {
  std::uint32_t rank;
  std::uint32_t left;  ///< index of the left token
  std::int32_t id;
  std::uint32_t end;  ///< WordToken::end of the token on the right. If it differs later, that token has changed.

  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
};

void Bpe::merge_many(std::vector<WordToken>& tokens) const {
  // Each merge stores its result in the left token, and sets the id of the right token to kNoToken.
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
    previous[i] = i - 1;  // wraps around for i = 0, but previous[0] is never read
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

}  // namespace headgate::tokenize
