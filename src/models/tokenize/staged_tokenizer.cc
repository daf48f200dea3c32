// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/staged_tokenizer.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "library/core/check.hpp"
#include "models/tokenize/byte_alphabet.hpp"
#include "models/tokenize/byte_fallback.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/scored_merges.hpp"
#include "models/tokenize/staged_stream.hpp"
#include "models/tokenize/unigram.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::size_t kMostAddedBytes = std::size_t{1} << 20;  ///< maximum total size of all added tokens in bytes

std::unique_ptr<const WordModel> make_model(const TokenizerParts& parts) {
  const auto is = [&parts](ModelKind kind) { return parts.model == kind; };
  if (is(ModelKind::unigram) || is(ModelKind::scored_bpe)) {
    const auto tokens = static_cast<std::size_t>(parts.vocabulary.size());
    if (parts.scores.size() != tokens) refuse("{} scores of {} tokens", parts.scores.size(), tokens);
  }
  if (is(ModelKind::unigram)) {
    const UnigramOptions options{.unknown = parts.options.unknown,
                                 .unknown_score = parts.unknown_score,
                                 .byte_fallback = parts.options.byte_fallback};
    return std::make_unique<Unigram>(parts.vocabulary, parts.scores, options);
  }
  BpeOptions options = parts.options;
  options.characters = !is(ModelKind::byte_bpe);
  const auto merges = is(ModelKind::scored_bpe) ? merges_by_score(parts.vocabulary, parts.scores)
                                                : ranked_merges(parts.vocabulary, parts.merges);
  return std::make_unique<Bpe>(parts.vocabulary, merges, options);
}

/// Returns `text` with each occurrence of `from` replaced by `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

/// Returns the bytes that a token adds to a decoded text. `as_spelled` is set for added tokens: it selects the bytes of
/// the token's spelling.
std::string bytes_of_token(const TokenizerParts& parts, std::string_view spelling, bool as_spelled) {
  if (parts.model == ModelKind::byte_bpe) {
    const auto bytes = as_spelled ? std::nullopt : bytes_of(spelling);
    return bytes ? *bytes : std::string(spelling);
  }
  if (parts.decodes_bytes && !as_spelled) {
    if (const auto byte = byte_of_token(spelling)) return {static_cast<char>(*byte)};
  }
  return parts.space.empty() ? std::string(spelling) : replaced(spelling, parts.space, " ");
}

class StagedTokenizer final : public Tokenizer {
 public:
  StagedTokenizer(std::string name, TokenizerParts parts)
      : stages_{.name = std::move(name),
                .source_tokens = AddedTokens(),
                .form = parts.form,
                .normalized_tokens = AddedTokens(),
                .steps = std::move(parts.steps),
                .model = make_model(parts),
                .before = std::move(parts.before),
                .after = std::move(parts.after)},
        tokens_(std::move(parts.vocabulary)),
        drops_leading_space_(parts.drops_leading_space),
        first_token_space_(parts.drops_first_token_spaces ? parts.space : "") {
    add(parts.added);
    for (const auto* ids : {&stages_.before, &stages_.after}) {
      for (const std::int32_t id : *ids) {
        if (tokens_.spelling(id).empty()) refuse("the template has id {}, which no token has", id);
      }
    }
    std::vector<bool> as_spelled(static_cast<std::size_t>(vocab()), false);
    for (const AddedToken& token : parts.added) as_spelled[static_cast<std::size_t>(token.id)] = true;
    for (std::int32_t id = 0; id < vocab(); ++id) {
      begins_.push_back(bytes_.size());
      bytes_ += bytes_of_token(parts, tokens_.spelling(id), as_spelled[static_cast<std::size_t>(id)]);
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
  const AddedToken* find_added(std::string_view spelling) const override {
    const auto found = added_.find(spelling);
    return found == added_.end() ? nullptr : &found->second;
  }
  bool normalizes() const override { return !stages_.form.changes_nothing(); }
  bool drops_leading_space() const override { return drops_leading_space_; }
  std::string first_bytes(std::int32_t id) const override {
    const std::string_view decoded = bytes(id), spelling = tokens_.spelling(id);
    const bool has_space = !first_token_space_.empty() && spelling.find(first_token_space_) != std::string_view::npos;
    return has_space ? replaced(spelling, first_token_space_, "") : std::string(decoded);
  }

 private:
  void add(const std::vector<AddedToken>& added);

  void check(std::int32_t id) const {
    require(!tokens_.spelling(id).empty(), "{}: no token has id {}; there are {}", stages_.name, id, vocab());
  }

  EncodingStages stages_;
  Vocabulary tokens_;                                     ///< tokens of the model and added tokens
  std::map<std::string, AddedToken, std::less<>> added_;  ///< added tokens by their spelling
  std::vector<bool> special_;                             ///< for each id, whether its token is special
  std::string bytes_;  ///< bytes of all tokens in the order of their ids, without gaps
  std::vector<std::size_t> begins_;
  bool drops_leading_space_;
  std::string first_token_space_;  // spelling of the spaces that first_bytes() removes; empty: removes none
};

void StagedTokenizer::add(const std::vector<AddedToken>& added) {
  std::size_t bytes = 0;
  std::vector<AddedToken> kinds[2][2];  // lists of tokens; indices: token.normalized, !token.special
  for (const AddedToken& token : added) {
    if (tokens_.find(token.content) != token.id) tokens_.add(token.id, token.content);
    added_.emplace(token.content, token);
    bytes += token.content.size();
    if (bytes > kMostAddedBytes) refuse("added tokens of more than {} bytes", kMostAddedBytes);
    kinds[token.normalized ? 1 : 0][token.special ? 0 : 1].push_back(token);
  }
  for (auto& [special, others] : kinds) special.insert(special.end(), others.begin(), others.end());
  special_.resize(static_cast<std::size_t>(tokens_.size()), false);
  for (const AddedToken& token : added) {
    if (token.special) special_[static_cast<std::size_t>(token.id)] = true;
  }
  stages_.source_tokens = AddedTokens(std::move(kinds[0][0]));
  stages_.normalized_tokens = AddedTokens(std::move(kinds[1][0]), stages_.form);
}

}  // namespace

std::unique_ptr<Tokenizer> make_staged_tokenizer(const std::string& name, TokenizerParts parts) {
  return std::make_unique<StagedTokenizer>(name, std::move(parts));
}

}  // namespace headgate::tokenize
