// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/gguf_vocabulary.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "library/core/format.hpp"
#include "models/io/input_file.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/staged_tokenizer.hpp"
#include "models/tokenize/tokenizer_json_text.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

// Types of tokens: the values in tokenizer.ggml.token_type.
constexpr std::int64_t kNormal = 1;
constexpr std::int64_t kUnknown = 2;
constexpr std::int64_t kControl = 3;
constexpr std::int64_t kUserDefined = 4;
constexpr std::int64_t kByte = 6;  // byte token; the largest valid type

/// Settings of one pre-tokenizer, which tokenizer.ggml.pre names.
struct Pre {
  std::string_view name;
  bool digits;  ///< whether each digit is split off before the pattern is applied
  std::string_view pattern;
  bool form_c;
  bool ignore_merges;
  bool add_bos;
};

const std::array<Pre, 9>& all_pre() {
  static const std::array<Pre, 9> rows{{{"gpt2", false, kGpt2Pattern, false, false, false},
                                        {"gpt-2", false, kGpt2Pattern, false, false, false},
                                        {"smollm", true, kGpt2Pattern, false, false, false},
                                        {"llama-bpe", false, kLlama3Pattern, false, true, true},
                                        {"llama3", false, kLlama3Pattern, false, true, true},
                                        {"llama-v3", false, kLlama3Pattern, false, true, true},
                                        {"qwen2", false, kQwen2Pattern, true, false, false},
                                        {"qwen35", false, kQwen35Pattern, true, false, false},
                                        {"gpt-4o", false, kO200kPattern, false, false, false}}};
  return rows;
}

const Pre& find_pre(const std::string& name) {
  for (const Pre& row : all_pre()) {
    if (row.name == name) return row;
  }
  refuse("tokenizer.ggml.pre: '{}' is not supported; {} are", io::printable(name),
         comma_separated(all_pre(), &Pre::name));
}

void read_tokens(TokenizerParts& parts, const GgufVocabulary& from) {
  if (!from.token_type.empty() && from.token_type.size() != from.tokens.size()) {
    refuse("tokenizer.ggml.token_type: {} types of {} tokens", from.token_type.size(), from.tokens.size());
  }
  for (std::size_t i = 0; i < from.tokens.size(); ++i) {
    const std::string& spelling = from.tokens[i];
    if (well_formed_prefix_size(spelling) != spelling.size()) {
      refuse("tokenizer.ggml.tokens[{}]: '{}' is not UTF-8", i, io::printable(spelling));
    }
    parts.vocabulary.add(static_cast<std::int64_t>(i), spelling);
    const std::int64_t type = from.token_type.empty() ? kNormal : from.token_type[i];
    if (type < 0 || type > kByte) refuse("tokenizer.ggml.token_type[{}]: {} is not a token type", i, type);
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    AddedToken token;
    token.id = static_cast<std::int32_t>(i);
    token.content = spelling;
    token.special = type != kUserDefined;
    parts.added.push_back(std::move(token));
  }
}

/// Reads the merges, best first. Of equal merges, the first counts, as in llama.cpp.
void read_merges(TokenizerParts& parts, const GgufVocabulary& from) {
  std::unordered_set<std::string_view> seen;
  for (std::size_t rank = 0; rank < from.merges.size(); ++rank) {
    const std::string& merge = from.merges[rank];
    if (!seen.insert(merge).second) continue;
    const std::size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos) {
      refuse("tokenizer.ggml.merges[{}]: '{}' is not \"left right\"", rank, io::printable(merge));
    }
    parts.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
}

/// Appends `id` to `side` if `wanted` is true. Throws TokenizerError, which names `key`, if the wanted id is missing or
/// out of range.
void add_around(std::vector<std::int32_t>& side, bool wanted, std::optional<std::int64_t> id, std::string_view key) {
  if (!wanted) return;
  if (!id) refuse("tokenizer.ggml.{}: missing, but texts must get this token", key);
  if (*id < 0 || *id >= kMostTokens) refuse("tokenizer.ggml.{}: {} is not 0 to {}", key, *id, kMostTokens - 1);
  side.push_back(static_cast<std::int32_t>(*id));
}

TokenizerParts byte_level_parts(const GgufVocabulary& from) {
  const Pre& pre = find_pre(from.pre);
  TokenizerParts parts;
  parts.form.form_c = pre.form_c;
  parts.options.ignore_merges = pre.ignore_merges;
  if (pre.digits) parts.steps.push_back({.pattern = Pattern(kDigitPattern)});
  parts.steps.push_back({.pattern = Pattern(pre.pattern), .prefix = from.add_space_prefix.value_or(false) ? " " : ""});
  read_tokens(parts, from);
  read_merges(parts, from);
  add_around(parts.before, from.add_bos_token.value_or(pre.add_bos), from.bos_token_id, "bos_token_id");
  add_around(parts.after, from.add_eos_token.value_or(false), from.eos_token_id, "eos_token_id");
  return parts;
}

/// Reads the scores of normal, user-defined and unused tokens. Sets the scores of other tokens, such as control tokens,
/// to NaN, so that merges do not produce them.
void read_scores(TokenizerParts& parts, const GgufVocabulary& from) {
  if (from.scores.size() != from.tokens.size()) {
    refuse("tokenizer.ggml.scores: {} scores of {} tokens", from.scores.size(), from.tokens.size());
  }
  for (std::size_t i = 0; i < from.scores.size(); ++i) {
    if (!std::isfinite(from.scores[i])) refuse("tokenizer.ggml.scores[{}]: {} is not finite", i, from.scores[i]);
    const std::int64_t type = from.token_type.empty() ? kNormal : from.token_type[i];
    const bool merges = type != kUnknown && type != kControl && type != kByte;
    parts.scores.push_back(merges ? double{from.scores[i]} : std::numeric_limits<double>::quiet_NaN());
  }
}

/// Returns the parts of a tokenizer with SentencePiece's BPE. Missing keys have the defaults of llama.cpp.
TokenizerParts sentence_piece_parts(const GgufVocabulary& from) {
  constexpr std::string_view kBlock = "\u2581";
  constexpr std::int64_t kUnknownId = 0, kBosId = 1, kEosId = 2;
  TokenizerParts parts;
  parts.model = ModelKind::scored_bpe;
  parts.form.space = parts.space = kBlock;
  parts.drops_leading_space = from.add_space_prefix.value_or(true);
  if (parts.drops_leading_space) parts.form.prefix = kBlock;
  parts.options.byte_fallback = parts.options.fuse_unknown = parts.decodes_bytes = true;
  read_tokens(parts, from);
  read_scores(parts, from);
  const std::int64_t unknown = from.unknown_token_id.value_or(kUnknownId);
  if (unknown >= 0 && unknown < parts.vocabulary.size()) parts.options.unknown = static_cast<std::int32_t>(unknown);
  add_around(parts.before, from.add_bos_token.value_or(true), from.bos_token_id.value_or(kBosId), "bos_token_id");
  add_around(parts.after, from.add_eos_token.value_or(false), from.eos_token_id.value_or(kEosId), "eos_token_id");
  return parts;
}

TokenizerParts parts_of(const GgufVocabulary& from) {
  if (from.model == "gpt2") return byte_level_parts(from);
  if (from.model == "llama") return sentence_piece_parts(from);
  refuse("tokenizer.ggml.model: '{}' is not supported; gpt2 (byte-level BPE) and llama (SentencePiece's BPE) are",
         io::printable(from.model));
}

}  // namespace

std::string gguf_tokenizer_json(const std::string& name, const GgufVocabulary& vocabulary) {
  try {
    const TokenizerParts parts = parts_of(vocabulary);
    make_staged_tokenizer(name, parts);  // throws if a merge or special token is not in the vocabulary
    return tokenizer_json_text(parts);
  } catch (const TokenizerError& error) {
    io::fail(name, "{}", error.what());
  }
}

std::unique_ptr<Tokenizer> make_gguf_tokenizer(const std::string& name, const GgufVocabulary& vocabulary) {
  try {
    return make_staged_tokenizer(name, parts_of(vocabulary));
  } catch (const TokenizerError& error) {
    io::fail(name, "{}", error.what());
  }
}

}  // namespace headgate::tokenize
