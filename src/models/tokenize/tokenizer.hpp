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
  bool add_special = true;       ///< adds what the tokenizer puts around a text, such as BOS before it
  bool special_as_text = false;  ///< special tokens spelled in the text are plain text
  bool spans = false;            ///< fills Encoding::spans
};

struct Encoding {
  std::vector<std::int32_t> ids;
  /// The bytes of the text that each token stands for; empty ranges at the text's ends for tokens put around it. Tokens
  /// that share a character divide its bytes. Only a character that normalization composed counts whole for each of its
  /// tokens.
  std::vector<Span> spans;
  std::size_t left_out = 0;  ///< bytes of the text for which the vocabulary has no token
};

/// Encodes one text that comes in parts. The tokens are those of the whole text, and spans count from its beginning.
/// Holds one word and the text that decides where it ends. Throws io::FileError, which names the tokenizer's file, if a
/// word, or the held text with the next part, exceeds 64 MiB, and if a pattern needs too many steps.
class StreamEncoder {
 public:
  virtual ~StreamEncoder() = default;

  /// Returns the next tokens that no continuation of the text changes.
  Encoding next(std::string_view part) { return take(part, Tail::open); }
  /// Takes the last part and returns the remaining tokens. Must be called once.
  Encoding finish(std::string_view part = {}) { return take(part, Tail::ended); }

 protected:
  virtual Encoding take(std::string_view part, Tail tail) = 0;
};

/// Converts text to ids and back. Any bytes are text: a run of bytes that are not UTF-8 is its own word. Objects are
/// immutable, and several threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the largest id + 1.
  virtual std::int32_t vocab() const = 0;
  /// Returns an encoder of one text. The tokenizer must outlive it.
  virtual std::unique_ptr<StreamEncoder> stream(const EncodeOptions& options) const = 0;
  /// Returns the tokens of a whole text. Throws as a StreamEncoder does.
  Encoding encode(std::string_view text, const EncodeOptions& options) const { return stream(options)->finish(text); }
  Encoding encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  // Describe one id. Throw Error for an id that is out of range or has no token.
  virtual std::string_view bytes(std::int32_t id) const = 0;  ///< what the token adds to a text
  virtual std::string spelling(std::int32_t id) const = 0;    ///< as in the vocabulary; UTF-8
  virtual bool special(std::int32_t id) const = 0;            ///< a control token, such as BOS

  /// Returns the id of a spelling, special tokens included; kNoToken if there is none.
  virtual std::int32_t find(std::string_view spelling) const = 0;

  /// Returns whether encoding puts a space before a text that decode() drops again.
  virtual bool drops_space() const { return false; }
  /// Returns the bytes of all ids, without special tokens if `skip_special`. The ids are those of a whole text: if
  /// drops_space(), one space at its front is left out. Throws Error as bytes() does.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
};

/// Returns a tokenizer whose 256 ids are the values of bytes, as models of `headgate train` read them.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// Adds `<bos>`, which follows the bytes and stands before every text, as models of `headgate train --bos on` read
/// them.
std::unique_ptr<Tokenizer> byte_tokenizer_with_bos();
inline constexpr std::int32_t kByteBos = 256;
/// Vocabulary of those models: their tokens, rounded up to a multiple of 8.
inline constexpr std::int32_t kVocabWithByteBos = 264;

/// Decodes ids as they come, and never splits a character. The ids may continue other text, so no space is dropped.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive the object.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// Returns the bytes that are complete now. Holds back at most the beginning of one character, up to 3 bytes; bytes
  /// that cannot begin a character are returned at once.
  std::string next(std::int32_t id);
  /// Returns the bytes held back. Call it after the last id.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace headgate::tokenize
