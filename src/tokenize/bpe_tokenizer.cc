// SPDX-License-Identifier: Apache-2.0
#include "tokenize/bpe_tokenizer.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "core/check.hpp"
#include "io/input_file.hpp"
#include "tokenize/byte_alphabet.hpp"
#include "tokenize/error.hpp"
#include "tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::size_t kMostAddedBytes = std::size_t{1} << 20;  ///< of all added tokens together
constexpr std::size_t kMostTextBytes =
    std::numeric_limits<std::uint32_t>::max() - 1;  // a word may get a space in front

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(std::string name, BpeParts parts)
      : name_(std::move(name)),
        steps_(std::move(parts.steps)),
        form_c_(parts.form_c),
        bpe_(parts.vocabulary, parts.merges, parts.options),
        before_(std::move(parts.before)),
        after_(std::move(parts.after)),
        tokens_(std::move(parts.vocabulary)) {
    add(parts.added);
    for (const auto* ids : {&before_, &after_}) {
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
  Encoding encode(std::string_view text, const EncodeOptions& options) const override;

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
  friend class TextEncoder;

  void add(const std::vector<AddedToken>& added);

  void check(std::int32_t id) const {
    require(!tokens_.spelling(id).empty(), "{}: no token has id {}; there are {}", name_, id, vocab());
  }

  std::string name_;
  std::vector<SplitStep> steps_;
  bool form_c_;
  Bpe bpe_;
  std::vector<std::int32_t> before_, after_;
  Vocabulary tokens_;  ///< added tokens included
  AddedTokens raw_, normalized_;
  std::vector<bool> special_;  ///< of each id
  std::string bytes_;          ///< of all tokens, by id
  std::vector<std::size_t> begins_;
};

void BpeTokenizer::add(const std::vector<AddedToken>& added) {
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
  raw_ = AddedTokens(std::move(kinds[0][0]));
  normalized_ = AddedTokens(std::move(kinds[1][0]), form_c_);
}

/// Where the bytes of a piece come from.
struct Origin {
  const Normalized& form;
  std::ptrdiff_t begin;  ///< of the piece in the text of `form`; one less where a space was put in front of it
  std::ptrdiff_t least;  ///< where the piece begins without that space

  Span source_of(const WordToken& token) const {
    const auto place = [this](std::uint32_t at) {
      return static_cast<std::size_t>(std::max(least, begin + std::ptrdiff_t{at}));
    };
    return form.source_of({place(token.begin), place(token.end)});
  }
};

/// Encodes one text: what is found again, and memory.
class TextEncoder {
 public:
  TextEncoder(const BpeTokenizer& tokenizer, const EncodeOptions& options)
      : t_(tokenizer), options_(options), words_(tokenizer.bpe_), pieces_(tokenizer.steps_.size()) {
    searches_.resize(t_.steps_.size());
    for (std::size_t i = 0; i < t_.steps_.size(); ++i) {
      if (t_.steps_[i].pattern) searches_[i].emplace(*t_.steps_[i].pattern);
    }
  }

  Encoding encode(std::string_view text) {
    if (options_.add_special) add_around(t_.before_, 0);
    while (done_ < text.size()) {
      const std::string_view rest = text.substr(done_);
      const std::size_t good = well_formed_bytes(rest);
      encode_utf8(rest.substr(0, good));
      done_ += good;
      const std::size_t bad = ill_formed_bytes(rest.substr(good));
      encode_word(rest.substr(good, bad), {Normalized(rest.substr(good, bad), false), 0, 0});
      done_ += bad;
    }
    if (options_.add_special) add_around(t_.after_, text.size());
    return std::move(out_);
  }

  std::size_t done() const { return done_; }

 private:
  void add_token(std::int32_t id, Span span) {
    out_.ids.push_back(id);
    if (options_.spans) out_.spans.push_back(span);
  }
  void add_around(const std::vector<std::int32_t>& ids, std::size_t at) {
    for (const std::int32_t id : ids) add_token(id, {at, at});
  }

  void encode_utf8(std::string_view text) {
    t_.raw_.split(raw_parts_, text, options_.special_as_text);
    const std::size_t begin = done_;
    for (const Part& raw : raw_parts_) {
      done_ = begin + raw.span.begin;
      if (raw.token != nullptr) {
        add_token(raw.token->id, {done_, begin + raw.span.end});
      } else {
        encode_part(text.substr(raw.span.begin, raw.span.end - raw.span.begin));
      }
    }
    done_ = begin;
  }

  void encode_part(std::string_view source) {
    const Normalized form(source, t_.form_c_);
    const std::string_view text = form.text();
    t_.normalized_.split(parts_, text, options_.special_as_text);
    for (const Part& part : parts_) {
      if (part.token != nullptr) {
        const Span span = form.source_of(part.span);
        add_token(part.token->id, {done_ + span.begin, done_ + span.end});
      } else {
        const auto begin = static_cast<std::ptrdiff_t>(part.span.begin);
        encode_piece(text.substr(part.span.begin, part.span.end - part.span.begin), {form, begin, begin}, 0);
      }
    }
  }

  void encode_piece(std::string_view piece, Origin origin, std::size_t step) {
    if (step == t_.steps_.size()) return encode_word(piece, origin);
    std::string with_space;
    if (t_.steps_[step].prefix_space && !piece.starts_with(' ')) {
      with_space = ' ' + std::string(piece);
      piece = with_space;
      --origin.begin;
    }
    std::vector<Span>& pieces = pieces_[step];
    cut(pieces, piece, t_.steps_[step], searches_[step] ? &*searches_[step] : nullptr);
    for (const Span& span : pieces) {
      const auto begin = origin.begin + static_cast<std::ptrdiff_t>(span.begin);
      encode_piece(piece.substr(span.begin, span.end - span.begin), {origin.form, begin, std::max(begin, origin.least)},
                   step + 1);
    }
  }

  void encode_word(std::string_view word, const Origin& origin) {
    std::size_t known = 0;
    for (const WordToken& token : words_.encode(word)) {
      known += token.end - token.begin;
      out_.ids.push_back(token.id);
      if (!options_.spans) continue;
      const Span span = origin.source_of(token);
      out_.spans.push_back({done_ + span.begin, done_ + span.end});
    }
    out_.left_out += word.size() - known;
  }

  const BpeTokenizer& t_;
  const EncodeOptions& options_;
  WordEncoder words_;
  std::vector<std::optional<PatternSearch>> searches_;  ///< of each step
  std::vector<std::vector<Span>> pieces_;               ///< of each step
  std::vector<Part> raw_parts_, parts_;
  Encoding out_;
  std::size_t done_ = 0;  ///< bytes of the text before the part that is encoded
};

Encoding BpeTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  require(text.size() <= kMostTextBytes, "{}: a text of {} bytes; at most {} are encoded", name_, text.size(),
          kMostTextBytes);
  TextEncoder encoder(*this, options);
  try {
    return encoder.encode(text);
  } catch (const TokenizerError& error) {
    io::fail(name_, "a pattern fails on the text from byte {} on: {}", encoder.done(), error.what());
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const std::string& name, BpeParts parts) {
  return std::make_unique<BpeTokenizer>(name, std::move(parts));
}

}  // namespace headgate::tokenize
