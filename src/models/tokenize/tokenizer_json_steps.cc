// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/tokenizer_json_steps.hpp"

#include <memory>
#include <optional>

#include "models/tokenize/pattern_syntax.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::string_view kBlock = "\u2581";  ///< spelling of a space in vocabularies of SentencePiece

/// Makes `form` replace each space by the text `by`. Also replaces spaces in form.prefix.
void replace_spaces(NormalForm& form, const std::string& by) {
  form.prefix = Normalized(form.prefix, {.form_c = false, .space = by, .prefix = {}}).text();
  form.space = by;
}

// --- normalizer ------------------------------------------------------------------------------------------------------

/// Returns the text of a pattern, which is a String or a Regex in the file.
std::string literal_of(const JsonValue& pattern) {
  pattern.only("pattern", {"String", "Regex"});
  const JsonValue regex = pattern.at("Regex");
  return regex.is_null() ? pattern.at("String").text() : regex.text();
}

void read_replace(NormalForm& form, const JsonValue& value) {
  value.only("Replace", {"type", "pattern", "content"});
  if (literal_of(value.at("pattern")) != " ") refuse("{}.pattern: only one space, ' ', is supported", value.where());
  if (!form.space.empty()) refuse("{}: a second Replace is not supported", value.where());
  const std::string content = value.at("content").text();
  if (content.empty()) refuse("{}.content: empty", value.where());
  replace_spaces(form, content);
}

void read_prepend(NormalForm& form, const JsonValue& value) {
  value.only("Prepend", {"type", "prepend"});
  if (form.charsmap != nullptr) refuse("{}: Prepend after Precompiled is not supported", value.where());
  if (!form.prefix.empty()) refuse("{}: a second Prepend is not supported", value.where());
  form.prefix = value.at("prepend").text();
}

void read_precompiled(NormalForm& form, const JsonValue& value) {
  value.only("Precompiled", {"type", "precompiled_charsmap"});
  if (!form.changes_nothing()) refuse("{}: Precompiled after another step is not supported", value.where());
  const JsonValue table = value.at("precompiled_charsmap");
  const std::string digits = table.text();
  try {
    form.charsmap = std::make_shared<const Charsmap>(decode_base64(digits));
  } catch (const TokenizerError& error) {
    refuse("{}: {}", table.where(), error.what());
  }
}

void read_normalizer(NormalForm& form, const JsonValue& value, bool inside) {
  const std::string type = value.type();
  if (type == "NFC") {
    value.only(type, {"type"});
    if (!form.space.empty() || !form.prefix.empty() || form.charsmap != nullptr) {
      refuse("{}: NFC after Prepend, Replace or Precompiled is not supported", value.where());
    }
    form.form_c = true;
  } else if (type == "Precompiled") {
    read_precompiled(form, value);
  } else if (type == "Replace") {
    read_replace(form, value);
  } else if (type == "Prepend") {
    read_prepend(form, value);
  } else if (type == "Sequence" && !inside) {
    for (const JsonValue& each : value.sequence("normalizers")) read_normalizer(form, each, true);
  } else {
    value.refuse_type(inside ? "NFC, Precompiled, Prepend and Replace are"
                             : "NFC, Precompiled, Prepend, Replace and Sequence are");
  }
}

// --- pre-tokenizer ---------------------------------------------------------------------------------------------------

SplitStep pattern_step(std::string_view regex, const std::string& where) {
  SplitStep step;
  try {
    step.pattern.emplace(regex);
  } catch (const TokenizerError& error) {
    refuse("{}: {}", where, error.what());
  }
  return step;
}

SplitStep read_split(const JsonValue& value) {
  value.only("Split", {"type", "pattern", "behavior", "invert"});
  const JsonValue pattern = value.at("pattern");
  pattern.only("pattern", {"Regex", "String"});
  const JsonValue regex = pattern.at("Regex");
  SplitStep step =
      pattern_step(regex.is_null() ? quoted_pattern(pattern.at("String").text()) : regex.text(), pattern.where());
  const std::string behavior = value.at("behavior").text();
  const auto known = find_word<SplitBehavior>(behavior);
  if (!known) refuse("{}: behavior '{}' is not supported", value.where(), io::printable(behavior));
  step.behavior = *known;
  step.invert = value.at("invert").flag(false);
  return step;
}

/// Selects which pieces of a text get the prefix ▁ of a step Metaspace: none, only the first, or all.
enum class Prepend { never, first, always };

/// Reads the keys of Metaspace. Metaspace can be a pre-tokenizer or a decoder.
Prepend read_metaspace(const JsonValue& value) {
  value.only("Metaspace", {"type", "replacement", "prepend_scheme", "add_prefix_space", "split"});
  for (const char* key : {"replacement", "str_rep"}) {
    const JsonValue text = value.at(key);
    if (!text.is_null() && text.text() != kBlock) refuse("{}.{}: only '{}' is supported", value.where(), key, kBlock);
  }
  const JsonValue scheme = value.at("prepend_scheme");
  const std::string name = scheme.is_null() ? "always" : scheme.text();
  if (name != "always" && name != "first" && name != "never") {
    refuse("{}: '{}' is not always, first or never", scheme.where(), io::printable(name));
  }
  if (!value.at("add_prefix_space").flag(true) && name != "never") {
    refuse("{}: add_prefix_space false contradicts prepend_scheme {}", value.where(), name);
  }
  return name == "always" ? Prepend::always : name == "first" ? Prepend::first : Prepend::never;
}

class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(TokenizerParts& parts) : parts_(parts) {}

  void read(const JsonValue& value, bool inside);
  bool byte_level() const { return byte_level_; }

 private:
  void add_byte_level(const JsonValue& value);
  void add_metaspace(const JsonValue& value);

  TokenizerParts& parts_;
  bool byte_level_ = false;  ///< whether the step ByteLevel was read; it must be the last step
  bool no_space_ = false;    ///< whether a step that was read has replaced or removed all spaces
};

void PreTokenizerReader::read(const JsonValue& value, bool inside) {
  const std::string type = value.type();
  if (byte_level_) refuse("{}: a step after ByteLevel is not supported", value.where());
  if (type == "Sequence" && !inside) {
    for (const JsonValue& each : value.sequence("pretokenizers")) read(each, true);
  } else if (type == "ByteLevel") {
    add_byte_level(value);
  } else if (type == "Metaspace") {
    add_metaspace(value);
  } else if (type == "Split") {
    parts_.steps.push_back(read_split(value));
  } else if (type == "Digits") {
    value.only("Digits", {"type", "individual_digits"});
    const bool each = value.at("individual_digits").flag(false);
    parts_.steps.push_back(pattern_step(each ? kDigitPattern : "\\p{N}+", value.where()));
  } else if (type == "WhitespaceSplit") {
    value.only(type, {"type"});
    parts_.steps.push_back(pattern_step("\\s+", value.where()));
    parts_.steps.back().behavior = SplitBehavior::removed;
    no_space_ = true;
  } else {
    value.refuse_type(inside ? "ByteLevel, Metaspace, Split, Digits and WhitespaceSplit are"
                             : "ByteLevel, Metaspace, Split, Digits, WhitespaceSplit and Sequence are");
  }
}

void PreTokenizerReader::add_byte_level(const JsonValue& value) {
  value.only("ByteLevel", {"type", "add_prefix_space", "use_regex"});
  SplitStep step = value.at("use_regex").flag(true) ? pattern_step(kGpt2Pattern, value.where()) : SplitStep();
  if (value.at("add_prefix_space").flag(true)) step.prefix = " ";
  if (step.pattern || !step.prefix.empty()) parts_.steps.push_back(step);
  byte_level_ = true;
}

/// Adds Metaspace, which replaces spaces. In tokenizer.json, this is a pre-tokenizer step, but this library replaces
/// spaces earlier, during normalization. Steps and added tokens for which the order matters are refused.
void PreTokenizerReader::add_metaspace(const JsonValue& value) {
  const Prepend prepend = read_metaspace(value);
  if (parts_.form.space.empty() && !no_space_) {
    if (!parts_.steps.empty()) refuse("{}: Metaspace after such a step is not supported", value.where());
    replace_spaces(parts_.form, std::string(kBlock));
    parts_.steps_replace_spaces = true;
  }
  no_space_ = true;
  parts_.space = kBlock;
  const bool splits = value.at("split").flag(true);
  SplitStep step = splits ? pattern_step(kBlock, value.where()) : SplitStep();
  step.behavior = SplitBehavior::merged_with_next;
  if (prepend != Prepend::never) step.prefix = kBlock;
  step.prefix_once = prepend == Prepend::first;
  if (step.pattern || !step.prefix.empty()) parts_.steps.push_back(step);
}

// --- decoder ---------------------------------------------------------------------------------------------------------

void read_strip(TokenizerParts& parts, const JsonValue& value) {
  value.only("Strip", {"type", "content", "start", "stop"});
  const std::int64_t start = value.at("start").integer();
  if (value.at("content").text() != " " || start > 1 || start < 0 || value.at("stop").integer() != 0) {
    refuse("{}: only one space at the start is supported", value.where());
  }
  parts.drops_leading_space = start == 1;
}

/// Checks the order of a decoder's steps. This library's decoding has a fixed order: it replaces ▁, decodes byte
/// tokens, joins the tokens, and drops a space at the start. Other orders can give other results. For example, Strip
/// before Fuse drops a space from every token.
class DecoderOrder {
 public:
  /// Takes the next step of the decoder. Throws TokenizerError if it may not follow the steps before it.
  void add(const JsonValue& value, const std::string& type) {
    constexpr std::string_view kOrder = "Replace, ByteFallback, Fuse, Strip, or Metaspace instead of Replace and Strip";
    const int stage = type == "ByteFallback" ? 1 : type == "Fuse" ? 2 : type == "Strip" ? 3 : 0;
    const bool is_strip_too_early = stage == 3 && (last_stage_ != 2 || !has_replace_);
    if (stage <= last_stage_ || is_strip_too_early) {
      refuse("{}: {} in this place is not supported; the order is {}", value.where(), type, kOrder);
    }
    last_stage_ = stage;
    has_replace_ = has_replace_ || type == "Replace";
  }

 private:
  int last_stage_ = -1;
  bool has_replace_ = false;
};

/// Reads the decoder of any model except byte_bpe.
void read_text_decoder(TokenizerParts& parts, const JsonValue& value, DecoderOrder& order, bool inside) {
  const std::string type = value.type();
  if (type == "Sequence" && !inside) {
    for (const JsonValue& each : value.sequence("decoders")) read_text_decoder(parts, each, order, true);
    return;
  }
  if (type == "Replace") {
    value.only("Replace", {"type", "pattern", "content"});
    if (literal_of(value.at("pattern")) != kBlock || value.at("content").text() != " ") {
      refuse("{}: only '{}' to ' ' is supported", value.where(), kBlock);
    }
    parts.space = kBlock;
  } else if (type == "Metaspace") {
    parts.drops_first_token_spaces = read_metaspace(value) != Prepend::never;
    parts.space = kBlock;
  } else if (type == "Strip") {
    read_strip(parts, value);
  } else if (type == "ByteFallback") {
    value.only(type, {"type"});
    parts.decodes_bytes = true;
  } else if (type == "Fuse") {  // nothing to set: decoding always joins tokens
    value.only(type, {"type"});
  } else {
    value.refuse_type(inside ? "Replace, ByteFallback, Fuse, Strip and Metaspace are"
                             : "Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence are");
  }
  order.add(value, type);
}

void check_byte_decoder(const JsonValue& value) {
  const std::string type = value.type();
  if (type == "ByteLevel") return value.only("decoder", {"type"});
  if (type != "Sequence") value.refuse_type("ByteLevel and Sequence are");
  for (const JsonValue& each : value.sequence("decoders")) {
    if (each.type() != "ByteLevel") each.refuse_type("ByteLevel is");
    each.only("decoder", {"type"});
  }
}

}  // namespace

void read_normalizer(TokenizerParts& parts, const JsonValue& value) {
  if (value.is_null()) return;
  read_normalizer(parts.form, value, false);
  parts.space = parts.form.space;
  parts.drops_leading_space = !parts.form.prefix.empty();
}

void read_pre_tokenizer(TokenizerParts& parts, const JsonValue& value) {
  PreTokenizerReader reader(parts);
  if (!value.is_null()) reader.read(value, false);
  if (!reader.byte_level()) return;
  if (parts.model == ModelKind::unigram) refuse("{}: ByteLevel with Unigram is not supported", value.where());
  if (parts.options.byte_fallback) refuse("model.byte_fallback: not supported together with ByteLevel");
  parts.model = ModelKind::byte_bpe;
}

void read_decoder(TokenizerParts& parts, const JsonValue& value) {
  parts.decodes_bytes = value.is_null() && parts.options.byte_fallback;
  if (value.is_null()) return;
  if (parts.model == ModelKind::byte_bpe) return check_byte_decoder(value);
  parts.drops_leading_space = false;
  DecoderOrder order;
  read_text_decoder(parts, value, order, false);
}

}  // namespace headgate::tokenize
