// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/staged_tokenizer.hpp"

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "library/core/check.hpp"
#include "models/tokenize/byte_alphabet.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/staged_stream.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::size_t kMostAddedBytes = std::size_t{1} << 20;  ///< of all added tokens together

class StagedTokenizer final : public Tokenizer {
 public:
  StagedTokenizer(std::string name, TokenizerParts parts)
      : stages_{.name = std::move(name),
                .raw = AddedTokens(),
                .form_c = parts.form_c,
                .normalized = AddedTokens(),
                .steps = std::move(parts.steps),
                .bpe = Bpe(parts.vocabulary, parts.merges, parts.options),
                .before = std::move(parts.before),
                .after = std::move(parts.after)},
        tokens_(std::move(parts.vocabulary)) {
    add(parts.added);
    for (const auto* ids : {&stages_.before, &stages_.after}) {
      for (const std::int32_t id : *ids) {
        if (tokens_.spelling(id).empty()) refuse("the template has id {}, which no token has", id);
      }
    }
    std::vector<bool> as_spelled(static_cast<std::size_t>(vocab()), false);  // not in the alphabet of bytes
    for (const AddedToken& token : parts.added) as_spelled[static_cast<std::size_t>(token.id)] = true;
    for (std::int32_t id = 0; id < vocab(); ++id) {
      const std::string_view spelling = tokens_.spelling(id);
      const auto bytes = as_spelled[static_cast<std::size_t>(id)] ? std::nullopt : bytes_of(spelling);
      begins_.push_back(bytes_.size());
      bytes_ += bytes ? std::string_view{*bytes} : spelling;
    }
    begins_.push_back(bytes_.size());
  }

  std::int32_t vocab() const override { return tokens_.size(); }
  std::unique_ptr<StreamEncoder> stream(const EncodeOptions& options) const override {
    return make_staged_stream(stages_, options);
  }

  std::string_view bytes(std::int32_t id) const override {
    check(id);
    const auto at = static_cast<std::size_t>(id);
    return std::string_view{bytes_}.substr(begins_[at], begins_[at + 1] - begins_[at]);
  }
  std::string spelling(std::int32_t id) const override {
    check(id);
    return std::string(tokens_.spelling(id));
  }
  bool special(std::int32_t id) const override {
    check(id);
    return special_[static_cast<std::size_t>(id)];
  }
  std::int32_t find(std::string_view spelling) const override { return tokens_.find(spelling); }

 private:
  void add(const std::vector<AddedToken>& added);

  void check(std::int32_t id) const {
    require(!tokens_.spelling(id).empty(), "{}: no token has id {}; there are {}", stages_.name, id, vocab());
  }

  Stages stages_;
  Vocabulary tokens_;          ///< added tokens included
  std::vector<bool> special_;  ///< of each id
  std::string bytes_;          ///< of all tokens, by id
  std::vector<std::size_t> begins_;
};

void StagedTokenizer::add(const std::vector<AddedToken>& added) {
  std::size_t bytes = 0;
  std::vector<AddedToken> kinds[2][2];  // [normalized][not special]
  for (const AddedToken& token : added) {
    if (tokens_.find(token.content) != token.id) tokens_.add(token.id, token.content);
    bytes += token.content.size();
    if (bytes > kMostAddedBytes) refuse("added tokens of more than {} bytes", kMostAddedBytes);
    kinds[token.normalized ? 1 : 0][token.special ? 0 : 1].push_back(token);
  }
  for (auto& [special, others] : kinds) special.insert(special.end(), others.begin(), others.end());
  special_.resize(static_cast<std::size_t>(tokens_.size()), false);
  for (const AddedToken& token : added) {
    if (token.special) special_[static_cast<std::size_t>(token.id)] = true;
  }
  stages_.raw = AddedTokens(std::move(kinds[0][0]));
  stages_.normalized = AddedTokens(std::move(kinds[1][0]), stages_.form_c);
}

}  // namespace

std::unique_ptr<Tokenizer> make_staged_tokenizer(const std::string& name, TokenizerParts parts) {
  return std::make_unique<StagedTokenizer>(name, std::move(parts));
}

}  // namespace headgate::tokenize
