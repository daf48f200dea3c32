// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/data/corpus.hpp"
#include "models/data/data.hpp"
#include "models/data/token_file.hpp"

namespace headgate::train {

/// Tokenizes the text and writes its token ids to options.token_file. Does nothing if the file already holds these ids.
/// Returns the reason why an existing file was replaced, or an empty string. Throws io::FileError, and Error if there
/// is no text.
std::string prepare_token_file(const DataOptions& options);

/// Reads sequences of a text from a file of its token ids.
/// - Windows and epochs: chosen as in TextSource, but from token ids instead of bytes.
/// - Held-out part: the same end of the text as in TextSource, rounded to whole tokens, and at least one sequence.
/// - Special token: if the tokenizer puts a token before a text, every sequence begins with that token.
class EncodedTextSource : public SequenceSource {
 public:
  /// Opens options.token_file, which prepare_token_file(options) has written. Throws io::FileError if the file holds
  /// the ids of another text or tokenizer. Throws Error if there are too few tokens, or if the tokenizer puts several
  /// tokens before a text.
  explicit EncodedTextSource(const DataOptions& options);

  std::int64_t seq_len() const override { return T_; }
  std::int64_t vocab() const override { return file_.vocab(); }
  void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  std::int64_t held_out_count() const override { return (file_.size() - training_ - 1) / T_; }
  void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  bool tokens_are_bytes() const override { return false; }
  std::optional<TargetText> target_text(std::int64_t index) const override;
  std::optional<std::int64_t> training_bytes(std::int64_t index) const override;
  std::uint64_t fingerprint() const override;
  std::string description() const override;
  std::string name() const override { return name_; }
  LeftOut left_out() const override { return left_out_; }
  std::vector<NamedText> model_files() const override;

  std::int64_t training_tokens() const { return training_; }

 private:
  /// Writes the T tokens and T targets of the window of T ids that starts at `begin`. Without a special token in front,
  /// the tokens are the window's ids, and the last target is the id after the window. With a special token in front,
  /// the targets are the window's ids.
  void copy_window(std::int32_t* tokens, std::int32_t* targets, std::int64_t begin) const;
  /// Returns the number of text bytes that the targets of the window at `begin` represent.
  std::int64_t window_bytes(std::int64_t begin) const;
  std::int64_t front() const { return static_cast<std::int64_t>(front_.size()); }

  TokenFile file_;
  std::shared_ptr<const tokenize::TokenizerFile> tokenizer_;
  std::string name_;
  LeftOut left_out_;
  std::size_t files_ = 0;
  std::int64_t text_bytes_ = 0;
  std::int64_t T_;
  std::uint64_t seed_;
  std::vector<std::int32_t> front_;  ///< special token that begins every sequence; at most one element
  std::int64_t training_ = 0;        ///< training uses ids [0, training_)
};

}  // namespace headgate::train
