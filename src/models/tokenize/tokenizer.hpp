// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/held_text.hpp"
#include "models/tokenize/normalize.hpp"
#include "models/tokenize/vocabulary.hpp"

namespace headgate::tokenize {

struct EncodeOptions {
  bool add_special = true;       ///< adds the special tokens around a text, such as BOS
  bool special_as_text = false;  ///< treats special tokens that the text spells as plain text
  bool spans = false;            ///< fills Encoding::spans
};

struct Encoding {
  std::vector<std::int32_t> ids;
  /// Bytes of the text that each token represents. Tokens put around the text have empty ranges at its ends. Tokens
  /// that share a character divide its bytes. The exception is a character that normalization composed: each of its
  /// tokens has all its bytes.
  std::vector<Span> spans;
  std::size_t left_out = 0;  ///< bytes of the text for which the vocabulary has no token
};

/// Encodes one text that comes in parts. The tokens are the same as for the whole text, and spans count from its
/// beginning. Holds one word in memory, and the text that decides where the word ends. Throws io::FileError if a word,
/// or the held text with the next part, exceeds 64 MiB, or if a pattern needs too many steps. The error names the
/// tokenizer's file.
class StreamEncoder {
 public:
  virtual ~StreamEncoder() = default;

  /// Takes the next part of the text. Returns the next tokens that further text cannot change.
  Encoding next(std::string_view part) { return take(part, Tail::open); }
  /// Takes the last part and returns the remaining tokens. Must be called once.
  Encoding finish(std::string_view part = {}) { return take(part, Tail::ended); }

 protected:
  virtual Encoding take(std::string_view part, Tail tail) = 0;
};

/// Converts text to ids and back. A text may be any bytes: each run of bytes that are not UTF-8 is a separate word.
/// Objects are immutable, and several threads may share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the largest id + 1.
  virtual std::int32_t vocab() const = 0;
  /// Returns an encoder of one text. The tokenizer must outlive the encoder.
  virtual std::unique_ptr<StreamEncoder> stream(const EncodeOptions& options) const = 0;
  /// Returns the tokens of a whole text. Throws as a StreamEncoder does.
  Encoding encode(std::string_view text, const EncodeOptions& options) const { return stream(options)->finish(text); }
  Encoding encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  // The next three functions describe one id. They throw Error for an id that is out of range or has no token.
  virtual std::string_view bytes(std::int32_t id) const = 0;  ///< bytes that the token adds to a decoded text
  virtual std::string spelling(std::int32_t id) const = 0;    ///< spelling in the vocabulary, in UTF-8
  virtual bool special(std::int32_t id) const = 0;            ///< whether the token is a control token, such as BOS

  /// Returns the id of a spelling, or kNoToken if no token has it. Special tokens are found too.
  virtual std::int32_t find(std::string_view spelling) const = 0;

  /// Returns whether encoding adds a space before a text and decode() drops it.
  virtual bool drops_space() const { return false; }
  /// Decodes the ids of a whole text to bytes. If `skip_special` is set, special tokens are left out. If drops_space(),
  /// one space at the front is dropped. Throws Error as bytes() does.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
};

/// Returns a tokenizer with one id per byte value, 0 to 255, for models of `headgate train`.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// Returns a byte tokenizer that puts `<bos>`, with id kByteBos, before every text, for models of `headgate train --bos
/// on`.
std::unique_ptr<Tokenizer> byte_tokenizer_with_bos();
inline constexpr std::int32_t kByteBos = 256;
/// Vocabulary size of models with kByteBos: 257 tokens, rounded up to a multiple of 8.
inline constexpr std::int32_t kVocabWithByteBos = 264;

/// Decodes ids one at a time, and never splits a character. No space is dropped, because the ids may continue other
/// text.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive the object.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// Takes the next id and returns all complete characters. Holds back at most the beginning of one character, up to 3
  /// bytes. Bytes that cannot begin a character are returned at once.
  std::string next(std::int32_t id);
  /// Returns the bytes held back. Call it after the last id.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace headgate::tokenize
