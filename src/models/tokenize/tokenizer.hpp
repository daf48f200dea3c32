// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/bpe.hpp"
#include "models/tokenize/held_text.hpp"
#include "models/tokenize/normalize.hpp"

namespace headgate::tokenize {

struct EncodeOptions {
  bool add_special = true;       ///< with what the tokenizer puts around a text, as BOS in front
  bool special_as_text = false;  ///< special tokens that the text spells out are text as any other
  bool spans = false;            ///< with Encoding::spans
};

struct Encoding {
  std::vector<std::int32_t> ids;
  /// The bytes of the text that each token stands for; empty ranges at its ends for what was put around it. Tokens that
  /// share a character have its bytes divided among them, but for characters that normalization composed, which each of
  /// their tokens has whole.
  std::vector<Span> spans;
  std::size_t left_out = 0;  ///< bytes of the text that the vocabulary has no token for
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

/// Text to ids and back. Any bytes are text: a run of bytes that are not UTF-8 is a word of its own. Objects do not
/// change, and several threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// One more than the largest id.
  virtual std::int32_t vocab() const = 0;
  /// Returns an encoder of one text. The tokenizer must outlive it.
  virtual std::unique_ptr<StreamEncoder> stream(const EncodeOptions& options) const = 0;
  /// Returns the tokens of a whole text. Throws as a StreamEncoder does.
  Encoding encode(std::string_view text, const EncodeOptions& options) const { return stream(options)->finish(text); }
  Encoding encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  // Of one id. An id out of range, or one that no token has: Error.
  virtual std::string_view bytes(std::int32_t id) const = 0;  ///< what it adds to a text
  virtual std::string spelling(std::int32_t id) const = 0;    ///< as in the vocabulary; UTF-8
  virtual bool special(std::int32_t id) const = 0;            ///< a sign to the model, as BOS is

  /// The id of a spelling, of special tokens too; kNoToken if there is none.
  virtual std::int32_t find(std::string_view spelling) const = 0;

  /// The bytes of all ids, without those of special tokens if `skip_special`. Throws Error as bytes() does.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
};

/// 256 ids, the values of bytes; what models of `headgate train` read.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// The same and `<bos>`, which follows the bytes and stands in front of every text: what models of `headgate train
/// --bos on` read.
std::unique_ptr<Tokenizer> byte_tokenizer_with_bos();
inline constexpr std::int32_t kByteBos = 256;
/// The vocabulary of those models: their tokens, rounded up to a multiple of 8.
inline constexpr std::int32_t kVocabWithByteBos = 264;

/// Decodes ids as they come, without ever cutting a character in two.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive the object.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// The bytes that are complete now. Kept back is at most the beginning of one character, up to 3 bytes; bytes that
  /// cannot begin a character come at once.
  std::string next(std::int32_t id);
  /// The bytes kept back; to be called after the last id.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace headgate::tokenize
