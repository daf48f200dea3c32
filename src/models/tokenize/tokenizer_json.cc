// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/tokenizer_json.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/byte_alphabet.hpp"
#include "models/tokenize/byte_fallback.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/staged_tokenizer.hpp"
#include "models/tokenize/tokenizer_json_steps.hpp"
#include "models/tokenize/tokenizer_json_value.hpp"

namespace headgate::tokenize {
namespace {

using io::Json;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr int kMaxDepth = 16;

// --- special tokens around a text ------------------------------------------------------------------------------------

std::vector<std::int32_t> ids_of_special(const JsonValue& special_tokens, const std::string& name) {
  std::vector<std::int32_t> out;
  const JsonValue token = special_tokens.at(name);
  if (token.is_null()) refuse("{}: no '{}', which the template has", special_tokens.where(), io::printable(name));
  token.only("special_tokens", {"ids"});
  for (const JsonValue& id : token.at("ids").list()) {
    const std::int64_t number = id.integer();
    if (number < 0 || number >= kMostTokens) refuse("{}: {} is not 0 to {}", id.where(), number, kMostTokens - 1);
    out.push_back(static_cast<std::int32_t>(number));
  }
  return out;
}

void read_template(TokenizerParts& parts, const JsonValue& value) {
  value.only("TemplateProcessing", {"type", "single", "special_tokens"});
  const JsonValue single = value.at("single");
  std::vector<std::int32_t>* side = &parts.before;
  for (const JsonValue& piece : single.list()) {
    piece.only("single", {"Sequence", "SpecialToken"});
    if (const JsonValue sequence = piece.at("Sequence"); !sequence.is_null()) {
      sequence.only("Sequence", {"id"});
      if (sequence.at("id").text() != "A") refuse("{}: not 'A'", sequence.at("id").where());
      if (side == &parts.after) refuse("{}: the text twice", single.where());
      side = &parts.after;
      continue;
    }
    const JsonValue special = piece.at("SpecialToken");
    special.only("SpecialToken", {"id"});
    const auto ids = ids_of_special(value.at("special_tokens"), special.at("id").text());
    side->insert(side->end(), ids.begin(), ids.end());
  }
  if (side == &parts.before) refuse("{}: without the text, Sequence A", single.where());
}

/// Reads a post-processor. `met` tells whether a template was read before; reading a template sets it. Throws
/// TokenizerError for a second template.
void read_post_processor(TokenizerParts& parts, bool& met, const JsonValue& value, bool inside) {
  if (value.is_null()) return;
  const std::string type = value.type();
  if (type == "TemplateProcessing") {
    if (met) refuse("{}: a second template is not supported", value.where());
    met = true;
    read_template(parts, value);
  } else if (type == "Sequence" && !inside) {
    for (const JsonValue& each : value.sequence("processors")) read_post_processor(parts, met, each, true);
  } else if (type == "ByteLevel") {
    value.only("post_processor", {"type"});
  } else {
    value.refuse_type(inside ? "ByteLevel and TemplateProcessing are"
                             : "ByteLevel, TemplateProcessing and Sequence are");
  }
}

// --- tokens and merges -----------------------------------------------------------------------------------------------

std::vector<AddedToken> read_added_tokens(const JsonValue& value) {
  std::vector<AddedToken> out;
  if (value.is_null()) return out;
  for (const JsonValue& each : value.list()) {
    each.only("added_tokens", {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    const std::int64_t id = each.at("id").integer();
    if (id < 0 || id >= kMostTokens) refuse("{}.id: {} is not 0 to {}", each.where(), id, kMostTokens - 1);
    token.id = static_cast<std::int32_t>(id);
    token.content = each.at("content").text();
    if (token.content.empty()) refuse("{}.content: empty", each.where());
    token.single_word = each.at("single_word").flag(false);
    token.lstrip = each.at("lstrip").flag(false);
    token.rstrip = each.at("rstrip").flag(false);
    token.special = each.at("special").flag(false);
    token.normalized = each.at("normalized").flag(!token.special);
    out.push_back(std::move(token));
  }
  return out;
}

/// Reads a merge in the form "left right" or ["left", "right"].
std::pair<std::string, std::string> read_merge(const Json& json, std::size_t rank) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  }
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  refuse("model.merges[{}]: neither \"left right\" nor [\"left\", \"right\"]", rank);
}

void read_bpe(TokenizerParts& parts, const JsonValue& model) {
  parts.model = ModelKind::character_bpe;
  model.only("BPE", {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonValue affix = model.at(key);
    if (!affix.is_null() && !affix.text().empty())
      refuse("model.{}: '{}' is not supported", key, io::printable(affix.text()));
  }
  if (const Json& dropout = model.at("dropout").json(); !dropout.is_null() && dropout != 0.0) {
    refuse("model.dropout: not supported");
  }
  const JsonValue vocab = model.at("vocab");
  if (!vocab.json().is_object()) refuse("model.vocab: not an object of ids");
  for (const auto& [spelling, id] : vocab.json().items()) {
    if (!id.is_number_integer()) refuse("model.vocab: the id of '{}' is not a whole number", io::printable(spelling));
    const std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    const bool large = id.is_number_unsigned() && id.get<std::uint64_t>() > most;
    if (large) refuse("token '{}' has id {}, not 0 to {}", io::printable(spelling), id.dump(), kMostTokens - 1);
    parts.vocabulary.add(id.get<std::int64_t>(), spelling);
  }
  const JsonValue merges = model.at("merges");
  if (!merges.json().is_array()) refuse("model.merges: not a list");
  for (std::size_t rank = 0; rank < merges.json().size(); ++rank) {
    parts.merges.push_back(read_merge(merges.json()[rank], rank));
  }
  parts.options.ignore_merges = model.at("ignore_merges").flag(false);
  parts.options.fuse_unknown = model.at("fuse_unk").flag(false);
  parts.options.byte_fallback = model.at("byte_fallback").flag(false);
  if (const JsonValue unknown = model.at("unk_token"); !unknown.is_null()) {
    parts.options.unknown = parts.vocabulary.find(unknown.text());
  }
}

void read_unigram(TokenizerParts& parts, const JsonValue& model) {
  constexpr double kUnknownPenalty = 10.0;
  parts.model = ModelKind::unigram;
  model.only("Unigram", {"type", "unk_id", "byte_fallback", "vocab"});
  const Json& vocab = model.at("vocab").json();
  if (!vocab.is_array() || vocab.empty()) refuse("model.vocab: not a list of [token, score]");
  for (std::size_t id = 0; id < vocab.size(); ++id) {
    const Json& entry = vocab[id];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      refuse("model.vocab[{}]: not [token, score]", id);
    }
    parts.vocabulary.add(static_cast<std::int64_t>(id), entry[0].get_ref<const std::string&>());
    parts.scores.push_back(entry[1].get<double>());
  }
  parts.unknown_score = *std::min_element(parts.scores.begin(), parts.scores.end()) - kUnknownPenalty;
  parts.options.byte_fallback = model.at("byte_fallback").flag(false);
  if (const JsonValue unknown = model.at("unk_id"); !unknown.is_null()) {
    const std::int64_t id = unknown.integer();
    if (id < 0 || id >= parts.vocabulary.size()) {
      refuse("model.unk_id: {} is not 0 to {}", id, parts.vocabulary.size() - 1);
    }
    parts.options.unknown = static_cast<std::int32_t>(id);
  }
}

void read_model(TokenizerParts& parts, const JsonValue& model) {
  const JsonValue type = model.at("type");  // old files have no type
  if (type.is_null()) return model.at("vocab").json().is_array() ? read_unigram(parts, model) : read_bpe(parts, model);
  if (type.text() == "BPE") return read_bpe(parts, model);
  if (type.text() == "Unigram") return read_unigram(parts, model);
  model.refuse_type("BPE and Unigram are");
}

/// Throws TokenizerError if a text may need the unknown token, but the vocabulary does not have this token.
void check_unknown(const TokenizerParts& parts, const JsonValue& unknown) {
  if (unknown.is_null() || parts.options.unknown != kNoToken) return;
  bool all_bytes = parts.options.byte_fallback && find_byte_tokens(parts.vocabulary).has_value();
  if (parts.model == ModelKind::byte_bpe) {
    all_bytes = true;
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      all_bytes = all_bytes && parts.vocabulary.find(spelling_of({&c, 1})) != kNoToken;
    }
  }
  if (!all_bytes) refuse("{}: '{}' is not a token", unknown.where(), io::printable(unknown.text()));
}

/// Throws TokenizerError if the `tokenizers` package would give an added token another id. The package uses the token's
/// id in the vocabulary, or else the next free id.
void check_added_ids(const TokenizerParts& parts) {
  std::map<std::string_view, std::int32_t> ids;
  const std::int32_t words = parts.vocabulary.count();
  std::int32_t next = words;
  for (const AddedToken& token : parts.added) {
    const std::int32_t known = parts.vocabulary.find(token.content);
    const auto [place, is_new] = ids.emplace(token.content, known == kNoToken ? next : known);
    if (token.id != place->second) {
      refuse("added token '{}' has id {}, but the `tokenizers` package gives it {}: save the file with the package",
             io::printable(token.content), token.id, place->second);
    }
    if (is_new) next = std::max(next, token.id + 1);
  }
}

/// Checks added tokens. Throws TokenizerError if an id or the treatment of spaces is not supported. Also makes Unigram
/// unable to produce special tokens from words.
void check_added_tokens(TokenizerParts& parts) {
  check_added_ids(parts);
  for (const AddedToken& token : parts.added) {
    const bool sees_spaces = token.lstrip || token.rstrip || token.content.find(' ') != std::string::npos ||
                             token.content.find(parts.form.space) != std::string::npos;
    if (parts.steps_replace_spaces && token.normalized && sees_spaces) {
      refuse("added token '{}': normalized, with spaces, and together with Metaspace: not supported",
             io::printable(token.content));
    }
    // Prevents Unigram from finding special tokens in words. With special_as_text, the spelling of a special token is
    // plain text and can thus be part of a word.
    const auto id = static_cast<std::size_t>(token.id);
    const double never = std::numeric_limits<double>::quiet_NaN();
    if (token.special && parts.model == ModelKind::unigram && id < parts.scores.size()) parts.scores[id] = never;
  }
}

TokenizerParts read_parts(const Json& json) {
  if (!json.is_object()) {
    refuse("is {}, not a tokenizer: a JSON object with model.vocab and model.merges", json.type_name());
  }
  const JsonValue file(json, "");
  file.only("", {"version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"});
  constexpr std::string_view kVersion = "1.0";
  if (const JsonValue version = file.at("version"); !version.is_null() && version.text() != kVersion) {
    refuse("version: '{}' is not supported; '{}' is", io::printable(version.text()), kVersion);
  }
  TokenizerParts parts;
  read_model(parts, file.at("model"));
  read_normalizer(parts, file.at("normalizer"));
  read_pre_tokenizer(parts, file.at("pre_tokenizer"));
  check_unknown(parts, file.at("model").at("unk_token"));
  bool has_template = false;
  read_post_processor(parts, has_template, file.at("post_processor"), false);
  read_decoder(parts, file.at("decoder"));
  parts.added = read_added_tokens(file.at("added_tokens"));
  check_added_tokens(parts);
  return parts;
}

}  // namespace

std::string read_json_text(const std::string& path) { return io::read_text(path, kMaxBytes); }

std::unique_ptr<Tokenizer> parse_tokenizer_json(const std::string& name, const std::string& text) {
  const Json json = io::parse_json(name, text, kMaxDepth);
  try {
    return make_staged_tokenizer(name, read_parts(json));
  } catch (const TokenizerError& error) {
    io::fail(name, "{}", error.what());
  }
}

std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path) {
  return parse_tokenizer_json(path, read_json_text(path));
}

}  // namespace headgate::tokenize
