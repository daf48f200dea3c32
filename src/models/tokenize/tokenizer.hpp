// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/normalize.hpp"
#include "models/tokenize/pending_text.hpp"
#include "models/tokenize/vocabulary.hpp"

namespace headgate::tokenize {

struct AddedToken;

struct EncodeOptions {
  bool add_special = true;       ///< whether to add the special tokens around a text, such as BOS
  bool special_as_text = false;  ///< whether to encode the spelling of a special token, such as "<eos>", as plain text
  bool spans = false;            ///< fills Encoding::spans
};

struct Encoding {
  std::vector<std::int32_t> ids;
  /// For each token, the bytes of the text that it represents.
  /// - Special tokens around the text have empty spans.
  /// - Several tokens may represent one character of the text. Then each has some of the character's bytes.
  /// - Normalization may compose several characters to one. Each token of the new character has the bytes of all of
  /// them.
  std::vector<Span> spans;
  std::size_t left_out = 0;  ///< number of bytes of the text that no token represents
};

/// Encodes one text that arrives in parts. Tokens and spans are the same as for the whole text at once. Stores only the
/// current word, and as much text after it as is needed to find its end. Throws io::FileError, which names the
/// tokenizer's file, in these cases:
/// - A word has more than 64 MiB.
/// - The pending text and the next part together have more than 64 MiB.
/// - A pattern takes too many steps.
class StreamEncoder {
 public:
  virtual ~StreamEncoder() = default;

  /// Takes the next part of the text. Returns the new tokens that later text cannot change.
  Encoding next(std::string_view part) { return take(part, More::may_follow); }
  /// Takes the last part. Returns the remaining tokens. Must be called exactly once.
  Encoding finish(std::string_view part = {}) { return take(part, More::none); }

 protected:
  virtual Encoding take(std::string_view part, More more) = 0;
};

/// Converts text to ids and ids to text. A text may contain any bytes. A sequence of bytes that are not UTF-8 is a word
/// of its own. Tokenizers are immutable, so several threads may share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the largest id + 1.
  virtual std::int32_t vocab() const = 0;
  /// Returns an encoder for one text. The tokenizer must outlive the encoder.
  virtual std::unique_ptr<StreamEncoder> stream(const EncodeOptions& options) const = 0;
  /// Returns the tokens of a whole text. Throws io::FileError in the same cases as StreamEncoder.
  Encoding encode(std::string_view text, const EncodeOptions& options) const { return stream(options)->finish(text); }
  Encoding encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  // The functions bytes(), spelling() and special() return a property of the token with the given id. They throw Error
  // if the id is out of range or has no token.
  virtual std::string_view bytes(std::int32_t id) const = 0;  ///< bytes that the token adds to a decoded text
  virtual std::string spelling(std::int32_t id) const = 0;    ///< spelling in the vocabulary, in UTF-8
  virtual bool special(std::int32_t id) const = 0;            ///< whether the token is a control token such as BOS

  /// Returns the id of the token with this spelling, or kNoToken. Includes special tokens.
  virtual std::int32_t find(std::string_view spelling) const = 0;

  /// Returns the added token with this spelling, or null. Words of the model are not added tokens.
  virtual const AddedToken* find_added(std::string_view /*spelling*/) const { return nullptr; }
  /// Returns whether encoding normalizes a text.
  virtual bool normalizes() const { return false; }

  /// Returns whether encoding adds a space before a text, which decode() drops.
  virtual bool drops_leading_space() const { return false; }
  /// Returns the bytes that a token adds to a decoded text if it is the first token. Throws Error as bytes() does.
  virtual std::string first_bytes(std::int32_t id) const { return std::string(bytes(id)); }
  /// Decodes the ids of a whole text to bytes. Omits special tokens if `skip_special` is set. Drops one space at the
  /// beginning if drops_leading_space() is true. Throws Error as bytes() does.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
};

/// Returns a tokenizer with one id for each byte, 0 to 255. Models of `headgate train` use it.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// Returns a byte tokenizer that puts the token `<bos>` with id kByteBos before every text. Models of `headgate train
/// --bos on` use it.
std::unique_ptr<Tokenizer> byte_tokenizer_with_bos();
inline constexpr std::int32_t kByteBos = 256;
/// Vocabulary size of models with kByteBos: 257 tokens, rounded up to a multiple of 8.
inline constexpr std::int32_t kVocabWithByteBos = 264;

/// Decodes ids one at a time and returns only whole characters. Keeps a space at the beginning, because the ids may
/// continue other text.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive the object.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// Takes the next id. Returns all whole characters that are now known, and bytes that cannot begin a character. Holds
  /// back only the beginning of a character, at most 3 bytes.
  std::string next(std::int32_t id);
  /// Returns the bytes that were held back. Call it after the last id.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace headgate::tokenize
