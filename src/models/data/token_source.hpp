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
  std::string name;  ///< where they come from, for messages
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> bytes;  ///< of the text, that each id stands for; empty: nobody knows
  std::vector<std::int32_t> front;  ///< what every sequence begins with, as BOS
  LeftOut left_out;

  /// Tokens of the longest sequence.
  std::int64_t longest() const;
};

/// The tokens of a text's bytes from `begin` to before `end` or its end, and in front of every sequence what the
/// tokenizer puts in front of a text; what it puts behind one is left out, for sequences end anywhere. A byte that
/// several tokens have counts for the first of them. Throws Error and io::FileError as Tokenizer::encode does.
TokenText token_text(const Corpus& corpus, std::int64_t begin, std::int64_t end, const tokenize::Tokenizer& tokenizer);

/// Token ids, cut from the first on into sequences of T tokens with their front; the token after a sequence is its last
/// target. Every id is a target once, but for the first where nothing stands in front of it and those after the last
/// whole sequence. A target of the front's own tokens does not count. All are held out: models with a vocabulary of
/// their own are evaluated on them.
class TokenSource : public SequenceSource {
 public:
  /// Throws Error for an id below 0 and for too few of them or of T.
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
  /// The first target of a sequence, as a place in the ids.
  std::int64_t first_target(std::int64_t index) const;

  TokenText text_;
  std::int64_t T_;
  std::int64_t counted_;    ///< targets of a sequence that count
  std::int64_t vocab_ = 1;  ///< the largest id and one
};

/// The integers of a .npy file, i32 or i64, of one dimension. Throws io::FileError, also for ids that are not within
/// 0 … 2^31 − 1.
std::vector<std::int32_t> read_token_ids(const std::string& path);

}  // namespace headgate::train
