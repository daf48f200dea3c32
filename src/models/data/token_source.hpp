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

/// A text as tokens.
struct TokenText {
  std::string name;  ///< where the tokens come from, for messages
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> bytes;  ///< bytes of the text that each id stands for; empty: unknown
  std::vector<std::int32_t> front;  ///< tokens that every sequence begins with, such as BOS
  LeftOut left_out;

  /// Returns the number of tokens of the longest sequence.
  std::int64_t longest() const;
};

/// Tokenizes a text's bytes from `begin` to before `end`, or to its end. `front` holds what the tokenizer puts before a
/// text. What it puts after a text is left out, because sequences end anywhere. A byte that several tokens share counts
/// for the first of them. Throws Error and io::FileError as Tokenizer::encode does.
TokenText token_text(const Corpus& corpus, std::int64_t begin, std::int64_t end, const tokenize::Tokenizer& tokenizer);

/// Splits token ids, from the first on, into sequences of T tokens that begin with `front`. The token after a sequence
/// is its last target. Every id is a target once, except those after the last whole sequence and, without a front, the
/// first. Targets that are the front's own tokens are ignored. All sequences are held out: models with their own
/// vocabulary are evaluated on them.
class TokenSource : public SequenceSource {
 public:
  /// Throws Error for an id below 0, for too few ids, and for too small a T.
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
  /// Returns the index, in the ids, of the first target of a sequence.
  std::int64_t first_target(std::int64_t index) const;

  TokenText text_;
  std::int64_t T_;
  std::int64_t counted_;    ///< targets of a sequence that are not ignored
  std::int64_t vocab_ = 1;  ///< the largest id + 1
};

/// Reads a .npy file of i32 or i64 of one dimension. Throws io::FileError, also if an id is outside 0 … 2^31 − 1.
std::vector<std::int32_t> read_token_ids(const std::string& path);

}  // namespace headgate::train
