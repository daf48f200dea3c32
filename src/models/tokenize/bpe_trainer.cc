// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/bpe_trainer.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "models/io/input_file.hpp"
#include "models/io/work.hpp"
#include "models/tokenize/byte_alphabet.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/pair_merger.hpp"
#include "models/tokenize/staged_tokenizer.hpp"
#include "models/tokenize/tokenizer_json_text.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::int32_t kBytes = 256;

/// Returns all 256 bytes, sorted by the characters that spell them. The index of a byte is its token id.
std::array<std::uint8_t, kBytes> bytes_by_id() {
  const auto spelling = [](std::uint8_t byte) {
    const char c = static_cast<char>(byte);
    return first_code_point(spelling_of({&c, 1})).value;
  };
  std::array<std::uint8_t, kBytes> out{};
  std::iota(out.begin(), out.end(), std::uint8_t{0});
  std::sort(out.begin(), out.end(), [&](std::uint8_t a, std::uint8_t b) { return spelling(a) < spelling(b); });
  return out;
}

/// Returns the special tokens in the order of their ids. Throws TokenizerError if a token or the number of ids is
/// invalid.
std::vector<std::string> special_tokens(const BpeTraining& options) {
  std::vector<std::string> out{std::string(kEndOfText)};
  for (const std::string& token : options.special) {
    if (token.empty() || well_formed_prefix_size(token) != token.size()) {
      refuse("special token '{}' is not UTF-8 text", io::printable(token));
    }
    if (std::find(out.begin(), out.end(), token) != out.end()) {
      refuse("special token '{}' is given twice{}", io::printable(token),
             token == kEndOfText ? ": every vocabulary has it" : "");
    }
    out.push_back(token);
  }
  const auto least = kBytes + static_cast<std::int32_t>(out.size());
  if (options.ids < least || options.ids > kMostTokens) {
    refuse("{} ids, not {} to {}: 256 bytes and {} special token{} come before merges", options.ids, least, kMostTokens,
           out.size(), out.size() == 1 ? "" : "s");
  }
  return out;
}

AddedToken special_token(std::int32_t id, const std::string& content) {
  AddedToken token;
  token.id = id;
  token.content = content;
  token.special = true;
  return token;
}

/// Learns merges until the vocabulary has `ids` tokens or no pair is frequent enough. Throws TokenizerError if a merge
/// would create a token that is spelled like a special token.
void learn(TokenizerParts& parts, PairMerger& merger, std::int32_t ids, const std::vector<std::string>& special) {
  std::vector<std::string> spellings;
  spellings.reserve(static_cast<std::size_t>(parts.vocabulary.size()));
  for (std::int32_t id = 0; id < parts.vocabulary.size(); ++id) spellings.emplace_back(parts.vocabulary.spelling(id));
  const std::int32_t before = parts.vocabulary.size();
  const auto report = [&](std::int32_t size) {
    io::report_work("learning merges", "", static_cast<double>(size - before) / static_cast<double>(ids - before));
  };
  while (parts.vocabulary.size() < ids) {
    const std::optional<TokenPair> pair = merger.most_frequent(BpeTrainer::kLeastCount);
    if (!pair) return report(ids);
    const std::string& left = spellings[static_cast<std::size_t>(pair->left)];
    const std::string& right = spellings[static_cast<std::size_t>(pair->right)];
    const std::string spelling = left + right;
    if (std::find(special.begin(), special.end(), spelling) != special.end()) {
      refuse("special token '{}' is a part of words of the text: give it another name", io::printable(spelling));
    }
    parts.merges.emplace_back(left, right);
    // Reuses the id of an existing token with this spelling, because different pairs can join to the same spelling.
    std::int32_t id = parts.vocabulary.find(spelling);
    if (id == kNoToken) {
      id = parts.vocabulary.size();
      parts.vocabulary.add(id, spelling);
      spellings.push_back(spelling);
    }
    merger.merge(*pair, id);
    report(parts.vocabulary.size());
  }
}

}  // namespace

BpeTrainer::BpeTrainer() : step_{.pattern = Pattern(kQwen2Pattern)}, cutter_(step_) {}

void BpeTrainer::add(std::string_view part, More more) {
  const std::string joined = unfinished_.empty() ? "" : unfinished_ + std::string(part);
  if (!joined.empty()) part = joined;
  for (;;) {
    const std::size_t whole = well_formed_prefix_size(part);
    const std::string_view rest = part.substr(whole);
    const bool may_continue = more == More::may_follow && incomplete_suffix_size(rest) == rest.size();
    cut(part.substr(0, whole), may_continue ? More::may_follow : More::none);
    unfinished_begin_ += whole;
    if (rest.empty() || may_continue) {
      unfinished_ = std::string(rest);
      break;
    }
    if (unfinished_begin_ < kCheckedBytes) {
      refuse("not UTF-8 text: byte 0x{:02x} at offset {}", static_cast<std::uint8_t>(rest.front()), unfinished_begin_);
    }
    const std::size_t skipped = std::max<std::size_t>(ill_formed_prefix_size(rest), 1);
    left_out_ += skipped;
    unfinished_begin_ += skipped;
    part = rest.substr(skipped);
  }
  if (more == More::none) unfinished_begin_ = 0;
}

void BpeTrainer::cut(std::string_view text, More more) {
  cutter_.next(slices_, text, more);
  for (const Slice& slice : slices_) {
    std::string_view piece = cutter_.view().substr(slice.span.begin, slice.span.end - slice.span.begin);
    if (!word_.empty()) {
      word_ += piece;
      piece = word_;
    }
    const std::size_t least = slice.more == More::none ? 1 : kWordPart;
    while (piece.size() >= least) {
      const std::string_view front = piece.substr(0, kWordPart);
      count(front);
      piece.remove_prefix(front.size());
    }
    word_ = std::string(piece);
  }
}

void BpeTrainer::count(std::string_view word) {
  const auto number = static_cast<std::size_t>(words_.insert(word));
  if (number == counts_.size()) {
    counts_.push_back(0);
    distinct_bytes_ += word.size();
    if (distinct_bytes_ > kMostDistinctBytes) {
      refuse("the distinct words of the text have more than {} MiB: use less of it", kMostDistinctBytes >> 20U);
    }
  }
  ++counts_[number];
}

TrainedBpe BpeTrainer::train(const BpeTraining& options) const {
  const std::vector<std::string> special = special_tokens(options);
  if (counts_.empty()) refuse("no text");
  TokenizerParts parts;
  parts.steps.push_back({.pattern = Pattern(kQwen2Pattern)});
  std::array<std::int32_t, kBytes> id_of{};
  for (const std::uint8_t byte : bytes_by_id()) {
    const char c = static_cast<char>(byte);
    id_of[byte] = parts.vocabulary.size();
    parts.vocabulary.add(id_of[byte], spelling_of({&c, 1}));
  }
  for (const std::string& token : special) {
    if (parts.vocabulary.find(token) != kNoToken) {
      refuse("special token '{}' has the spelling of a byte: give it another name", io::printable(token));
    }
  }
  PairMerger merger;
  std::vector<std::int32_t> tokens;
  for (std::size_t w = 0; w < counts_.size(); ++w) {
    tokens.clear();
    for (const char c : words_.key(static_cast<std::int32_t>(w))) tokens.push_back(id_of[static_cast<std::uint8_t>(c)]);
    merger.add(tokens, counts_[w]);
  }
  learn(parts, merger, options.ids - static_cast<std::int32_t>(special.size()), special);
  for (const std::string& token : special) {
    parts.added.push_back(special_token(parts.vocabulary.size(), token));
    parts.vocabulary.add(parts.vocabulary.size(), token);
  }
  if (options.bos) parts.before.push_back(parts.added.front().id);
  return {tokenizer_json_text(parts), parts.vocabulary.size()};
}

}  // namespace headgate::tokenize
