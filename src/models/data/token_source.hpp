// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/data/corpus.hpp"
#include "models/data/data.hpp"
#include "models/tokenize/tokenizer.hpp"

namespace headgate::train {

/// The token ids of a text.
struct TokenText {
  std::string name;  ///< source of the tokens, for messages
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> bytes;  ///< number of text bytes that each id represents; empty: unknown
  std::vector<std::int32_t> front;  ///< tokens at the start of every sequence, such as BOS
  LeftOut left_out;

  /// Returns the length in tokens of the longest sequence that the text can fill.
  std::int64_t longest() const;
};

/// Tokenizes bytes [begin, end) of a text; `end` is clamped to the size of the text.
/// - Skips a character that begins before `begin`.
/// - Drops the last character if the range ends before the text does, because the character may be incomplete.
/// - Stores in `front` the special tokens that the tokenizer puts before a text.
/// - Omits special tokens after a text, because a sequence can end anywhere in the text.
/// - If several tokens share a byte, only the first token's byte count includes the byte.
///
/// Throws Error and io::FileError in the same cases as Tokenizer::encode.
TokenText token_text(const Corpus& corpus, std::int64_t begin, std::int64_t end, const tokenize::Tokenizer& tokenizer);

/// Splits token ids into sequences of T tokens, each beginning with the special tokens `front`. All sequences are held
/// out, because this source is only used to evaluate models. Every id is a target exactly once, except:
/// - ids after the last whole sequence
/// - the first id, if `front` is empty
///
/// Targets within `front` are ignored. The last target of a sequence is the token after it.
class TokenSource : public SequenceSource {
 public:
  /// Throws Error if an id is negative, if the ids do not fill one sequence, or if a sequence of T = `seq_len` tokens
  /// has no target beside the special tokens TokenText::front.
  TokenSource(TokenText text, std::int64_t seq_len);

  std::int64_t seq_len() const override { return T_; }
  std::int64_t vocab() const override { return vocab_; }
  void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  std::int64_t held_out_count() const override;
  void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  bool tokens_are_bytes() const override { return false; }
  std::optional<TargetText> target_text(std::int64_t index) const override;
  std::uint64_t fingerprint() const override;
  std::string description() const override;
  std::string name() const override { return text_.name; }
  LeftOut left_out() const override { return text_.left_out; }

 private:
  /// Returns the index in text_.ids of the first target of sequence `index`.
  std::int64_t first_target(std::int64_t index) const;

  TokenText text_;
  std::int64_t T_;
  std::int64_t counted_;    ///< number of targets of a sequence that are not ignored
  std::int64_t vocab_ = 1;  ///< largest token id + 1
};

/// Reads a one-dimensional .npy file of i32 or i64. Throws io::FileError if the file is not such an array, or if an id
/// is outside 0 … 2^31 − 1.
std::vector<std::int32_t> read_token_ids(const std::string& path);

}  // namespace headgate::train
