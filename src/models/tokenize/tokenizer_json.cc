// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/tokenizer_json.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/pattern_syntax.hpp"
#include "models/tokenize/staged_tokenizer.hpp"

namespace headgate::tokenize {
namespace {

using io::Json;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxParts = 64;  ///< of a Sequence

/// Holds a value of the file and, for messages, the keys that lead to it.
class Value {
 public:
  Value(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  const Json& json() const { return json_; }
  bool is_null() const { return json_.is_null(); }

  /// Returns the value of a key, null if it is absent.
  Value at(const std::string& key) const {
    static const Json null;
    if (!json_.is_object()) refuse("{}: not an object", where_);
    const auto found = json_.find(key);
    return {found == json_.end() ? null : *found, where_.empty() ? key : where_ + "." + key};
  }

  /// Throws unless every other key is absent or has no effect: null, false or "".
  void only(std::initializer_list<std::string_view> keys) const {
    if (!json_.is_object()) refuse("{}: not an object", where_);
    for (const auto& [key, value] : json_.items()) {
      const bool empty = value.is_string() && value.get_ref<const std::string&>().empty();
      const bool silent = value.is_null() || value == false || empty;
      if (!silent && std::find(keys.begin(), keys.end(), key) == keys.end()) {
        refuse("{}'{}' is not supported", where_.empty() ? "" : where_ + ": ", io::printable(key));
      }
    }
  }

  std::vector<Value> list() const {
    if (!json_.is_array()) refuse("{}: not a list", where_);
    std::vector<Value> out;
    for (std::size_t i = 0; i < json_.size(); ++i) out.emplace_back(json_[i], fmt::format("{}[{}]", where_, i));
    return out;
  }

  /// Returns a list of steps, each with a type.
  std::vector<Value> sequence(const std::string& key) const {
    only({"type", key});
    std::vector<Value> out = at(key).list();
    if (out.size() > kMaxParts) refuse("{}.{}: {} parts; at most {} are taken", where_, key, out.size(), kMaxParts);
    return out;
  }

  std::string text() const {
    if (!json_.is_string()) refuse("{}: not a string", where_);
    return json_.get<std::string>();
  }

  bool flag(bool absent) const {
    if (is_null()) return absent;
    if (!json_.is_boolean()) refuse("{}: neither true nor false", where_);
    return json_.get<bool>();
  }

  std::int64_t integer() const {
    const bool fits =
        json_.is_number_unsigned() ? json_.get<std::uint64_t>() < std::uint64_t{1} << 62 : json_.is_number_integer();
    if (!fits) refuse("{}: not a whole number in range", where_);
    return json_.get<std::int64_t>();
  }

  std::string type() const { return at("type").text(); }

  [[noreturn]] void refuse_type(std::string_view supported) const {
    refuse("{}: type '{}' is not supported; {}", where_, io::printable(type()), supported);
  }

 private:
  const Json& json_;
  std::string where_;
};

// --- steps -----------------------------------------------------------------------------------------------------------

void read_normalizer(TokenizerParts& parts, const Value& value) {
  if (value.is_null()) return;
  const std::string type = value.type();
  if (type == "NFC") {
    value.only({"type"});
    parts.form_c = true;
  } else if (type == "Sequence") {
    for (const Value& each : value.sequence("normalizers")) {
      if (each.type() != "NFC") each.refuse_type("NFC is");
      read_normalizer(parts, each);
    }
  } else {
    value.refuse_type("NFC and Sequence are");
  }
}

SplitStep pattern_step(std::string_view regex, const std::string& where) {
  SplitStep step;
  try {
    step.pattern.emplace(regex);
  } catch (const TokenizerError& error) {
    refuse("{}: {}", where, error.what());
  }
  return step;
}

SplitStep read_split(const Value& value) {
  value.only({"type", "pattern", "behavior", "invert"});
  const Value pattern = value.at("pattern");
  pattern.only({"Regex", "String"});
  const Value regex = pattern.at("Regex");
  SplitStep step =
      pattern_step(regex.is_null() ? quoted_pattern(pattern.at("String").text()) : regex.text(), pattern.where());
  const std::string behavior = value.at("behavior").text();
  const auto known = find_word<SplitBehavior>(behavior);
  if (!known) refuse("{}: behavior '{}' is not supported", value.where(), io::printable(behavior));
  step.behavior = *known;
  step.invert = value.at("invert").flag(false);
  return step;
}

/// Appends the steps of a pre-tokenizer. `bytes`: whether the step that turns text into bytes has been read.
void read_steps(std::vector<SplitStep>& steps, bool& bytes, const Value& value, bool inside) {
  const std::string type = value.type();
  if (bytes) refuse("{}: a step after ByteLevel is not supported", value.where());
  if (type == "Sequence" && !inside) {
    for (const Value& each : value.sequence("pretokenizers")) read_steps(steps, bytes, each, true);
  } else if (type == "ByteLevel") {
    value.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    SplitStep step = value.at("use_regex").flag(true) ? pattern_step(kGpt2Pattern, value.where()) : SplitStep();
    step.prefix_space = value.at("add_prefix_space").flag(true);
    if (step.pattern || step.prefix_space) steps.push_back(step);
    bytes = true;
  } else if (type == "Split") {
    steps.push_back(read_split(value));
  } else if (type == "Digits") {
    value.only({"type", "individual_digits"});
    const bool each = value.at("individual_digits").flag(false);
    steps.push_back(pattern_step(each ? kDigitPattern : "\\p{N}+", value.where()));
  } else {
    value.refuse_type(inside ? "ByteLevel, Split and Digits are" : "ByteLevel, Split, Digits and Sequence are");
  }
}

void read_pre_tokenizer(TokenizerParts& parts, const Value& value) {
  bool bytes = false;
  if (!value.is_null()) read_steps(parts.steps, bytes, value, false);
  if (!bytes) refuse("{}: no ByteLevel; of BPE, only the byte-level kind is supported", value.where());
}

// --- what is put around a text ---------------------------------------------------------------------------------------

std::vector<std::int32_t> ids_of_special(const Value& special_tokens, const std::string& name) {
  std::vector<std::int32_t> out;
  const Value token = special_tokens.at(name);
  if (token.is_null()) refuse("{}: no '{}', which the template has", special_tokens.where(), io::printable(name));
  for (const Value& id : token.at("ids").list()) {
    const std::int64_t number = id.integer();
    if (number < 0 || number >= kMostTokens) refuse("{}: {} is not 0 to {}", id.where(), number, kMostTokens - 1);
    out.push_back(static_cast<std::int32_t>(number));
  }
  return out;
}

void read_template(TokenizerParts& parts, const Value& value) {
  value.only({"type", "single", "pair", "special_tokens"});
  const Value single = value.at("single");
  std::vector<std::int32_t>* side = &parts.before;
  for (const Value& piece : single.list()) {
    piece.only({"Sequence", "SpecialToken"});
    if (const Value sequence = piece.at("Sequence"); !sequence.is_null()) {
      if (sequence.at("id").text() != "A") refuse("{}: not 'A'", sequence.at("id").where());
      if (side == &parts.after) refuse("{}: the text twice", single.where());
      side = &parts.after;
      continue;
    }
    const auto ids = ids_of_special(value.at("special_tokens"), piece.at("SpecialToken").at("id").text());
    side->insert(side->end(), ids.begin(), ids.end());
  }
  if (side == &parts.before) refuse("{}: without the text, Sequence A", single.where());
}

/// `met`: whether a template has been read.
void read_post_processor(TokenizerParts& parts, bool& met, const Value& value, bool inside) {
  if (value.is_null()) return;
  const std::string type = value.type();
  if (type == "TemplateProcessing") {
    if (met) refuse("{}: a second template is not supported", value.where());
    met = true;
    read_template(parts, value);
  } else if (type == "Sequence" && !inside) {
    for (const Value& each : value.sequence("processors")) read_post_processor(parts, met, each, true);
  } else if (type != "ByteLevel") {  // ByteLevel only trims offsets
    value.refuse_type(inside ? "ByteLevel and TemplateProcessing are"
                             : "ByteLevel, TemplateProcessing and Sequence are");
  }
}

void check_decoder(const Value& value) {
  if (value.is_null()) return;
  const std::string type = value.type();
  if (type == "ByteLevel") return;
  if (type != "Sequence") value.refuse_type("ByteLevel and Sequence are");
  for (const Value& each : value.sequence("decoders")) {
    if (each.type() != "ByteLevel") each.refuse_type("ByteLevel is");
  }
}

// --- tokens and merges -----------------------------------------------------------------------------------------------

std::vector<AddedToken> read_added_tokens(const Value& value) {
  std::vector<AddedToken> out;
  if (value.is_null()) return out;
  for (const Value& each : value.list()) {
    each.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
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

/// Reads "left right" or ["left", "right"].
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

void read_model(TokenizerParts& parts, const Value& model) {
  const Value type = model.at("type");  // absent in old files
  if (!type.is_null() && type.text() != "BPE") model.refuse_type("BPE is");
  model.only({"type", "dropout", "unk_token", "fuse_unk", "ignore_merges", "vocab", "merges"});
  if (const Json& dropout = model.at("dropout").json(); !dropout.is_null() && dropout != 0.0) {
    refuse("model.dropout: not supported");
  }
  const Value vocab = model.at("vocab");
  if (!vocab.json().is_object()) refuse("model.vocab: not an object of ids");
  for (const auto& [spelling, id] : vocab.json().items()) {
    if (!id.is_number_integer()) refuse("model.vocab: the id of '{}' is not a whole number", io::printable(spelling));
    const bool large = id.is_number_unsigned() && id.get<std::uint64_t>() > kMostTokens;
    parts.vocabulary.add(large ? kMostTokens : id.get<std::int64_t>(), spelling);
  }
  const Value merges = model.at("merges");
  if (!merges.json().is_array()) refuse("model.merges: not a list");
  for (std::size_t rank = 0; rank < merges.json().size(); ++rank) {
    parts.merges.push_back(read_merge(merges.json()[rank], rank));
  }
  parts.options.ignore_merges = model.at("ignore_merges").flag(false);
  parts.options.fuse_unknown = model.at("fuse_unk").flag(false);
  if (const Value unknown = model.at("unk_token"); !unknown.is_null()) {
    parts.options.unknown = parts.vocabulary.find(unknown.text());
  }
}

TokenizerParts read_parts(const Json& json) {
  if (!json.is_object()) {
    refuse("is {}, not a tokenizer: a JSON object with model.vocab and model.merges", json.type_name());
  }
  const Value file(json, "");
  file.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
             "decoder", "model"});
  for (const char* key : {"truncation", "padding"}) {
    if (!file.at(key).is_null()) refuse("{}: not supported; texts are taken as they are", key);
  }
  TokenizerParts parts;
  read_model(parts, file.at("model"));
  read_normalizer(parts, file.at("normalizer"));
  read_pre_tokenizer(parts, file.at("pre_tokenizer"));
  bool has_template = false;
  read_post_processor(parts, has_template, file.at("post_processor"), false);
  check_decoder(file.at("decoder"));
  parts.added = read_added_tokens(file.at("added_tokens"));
  return parts;
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path) {
  const Json json = io::parse_json(path, io::read_text(path, kMaxBytes), kMaxDepth);
  try {
    return make_staged_tokenizer(path, read_parts(json));
  } catch (const TokenizerError& error) {
    io::fail(path, "{}", error.what());
  }
}

}  // namespace headgate::tokenize
