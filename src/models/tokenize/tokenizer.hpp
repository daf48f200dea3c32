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
  bool special_as_text = false;  ///< encodes the spelling of a special token, such as "<eos>", as plain text
  bool spans = false;            ///< fills Encoding::spans
};

struct Encoding {
  std::vector<std::int32_t> ids;
  /// Bytes of the text that each token represents. Special tokens around the text have empty ranges. If several tokens
  /// make up one character, each gets some of its bytes. If normalization composed the character, each gets all of its
  /// bytes.
  std::vector<Span> spans;
  std::size_t left_out = 0;  ///< number of bytes of the text that no token represents
};

/// Encodes one text that comes in parts. The tokens are the same as for the whole text, and spans count from its
/// beginning. Holds the current word in memory, and text after it as needed to find its end. Throws io::FileError,
/// naming the tokenizer's file, if a word or the held text with the next part exceeds 64 MiB. Also throws it if a
/// pattern needs too many steps.
class StreamEncoder {
 public:
  virtual ~StreamEncoder() = default;

  /// Takes the next part of the text. Returns all new tokens that later text cannot change.
  Encoding next(std::string_view part) { return take(part, Tail::open); }
  /// Takes the last part and returns the remaining tokens. Must be called once.
  Encoding finish(std::string_view part = {}) { return take(part, Tail::ended); }

 protected:
  virtual Encoding take(std::string_view part, Tail tail) = 0;
};

/// Converts text to ids and back. A text may be arbitrary bytes: a run of bytes that are not UTF-8 is a separate word.
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

  // The next three functions describe the token of one id. They throw Error if the id is out of range or has no token.
  virtual std::string_view bytes(std::int32_t id) const = 0;  ///< bytes that the token adds to a decoded text
  virtual std::string spelling(std::int32_t id) const = 0;    ///< spelling in the vocabulary, in UTF-8
  virtual bool special(std::int32_t id) const = 0;            ///< whether the token is a control token, such as BOS

  /// Returns the id of a spelling, or kNoToken if no token has it. Special tokens are found too.
  virtual std::int32_t find(std::string_view spelling) const = 0;

  /// Returns whether encoding adds a space before a text and decode() drops it.
  virtual bool drops_space() const { return false; }
  /// Returns the bytes that a token adds to a decoded text that it begins. Throws Error as bytes() does.
  virtual std::string first_bytes(std::int32_t id) const { return std::string(bytes(id)); }
  /// Decodes the ids of a whole text to bytes. Omits special tokens if `skip_special`. Drops one space at the beginning
  /// if drops_space(). Throws Error as bytes() does.
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

/// Decodes ids one at a time, and returns only complete characters. Does not drop a space at the beginning, because the
/// ids may continue other text.
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
