// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "library/core/words.hpp"
#include "models/data/text_files.hpp"
#include "models/tokenize/tokenizer.hpp"
#include "models/tokenize/tokenizer_file.hpp"

namespace headgate::train {

/// Selects what the sequences of a run are made of:
/// - text: windows of the data's bytes or token ids.
/// - bigram_backcopy: random tokens, drawn from the bigram statistics of the data (backcopy.hpp).
enum class Task { text, bigram_backcopy };

/// Selects whether every sequence of Task::text begins with the special token kBos. Sequences of Task::bigram_backcopy
/// always begin with it.
enum class Bos { off, on };

inline constexpr std::int32_t kBos = tokenize::kByteBos;

/// Counts the targets of a sequence, without ignored ones, and the text bytes that these targets represent.
struct TargetText {
  std::int64_t targets = 0, bytes = 0;
};

/// A file's name and content.
struct NamedText {
  std::string name, text;
};

/// Provides sequences of T = seq_len tokens. The target of a token is the token after it. A sequence depends only on
/// its index, so that a run can be resumed at any step.
class SequenceSource {
 public:
  virtual ~SequenceSource() = default;

  virtual std::int64_t seq_len() const = 0;
  /// Returns the size of the vocabulary. Token ids lie in [0, vocab()).
  virtual std::int64_t vocab() const = 0;
  /// Writes tokens(T) and targets(T) of training sequence `index` ≥ 0.
  virtual void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const = 0;
  /// Returns the number of held-out sequences, which are never used for training.
  virtual std::int64_t held_out_count() const = 0;
  /// Writes tokens(T) and targets(T) of held-out sequence `index` in [0, held_out_count()).
  virtual void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const = 0;
  /// Returns whether a token is a trigger, which means that the next token copies an earlier one (kTriggers). Always
  /// false for tasks other than bigram_backcopy.
  virtual bool is_trigger(std::int32_t /*token*/) const { return false; }
  virtual bool has_triggers() const { return false; }
  /// Returns whether the data are text with one token per byte.
  virtual bool tokens_are_bytes() const { return true; }
  /// Returns the number of targets of a held-out sequence and the text bytes that they represent. Returns nullopt if
  /// tokens are bytes or the text is unknown.
  virtual std::optional<TargetText> target_text(std::int64_t /*index*/) const { return std::nullopt; }
  /// Returns the number of text bytes that the targets of a training sequence represent, or nullopt if it is unknown.
  virtual std::optional<std::int64_t> training_bytes(std::int64_t /*index*/) const {
    return tokens_are_bytes() ? std::optional(seq_len()) : std::nullopt;
  }
  /// Returns the tokenizer files that a model trained on the data needs.
  virtual std::vector<NamedText> model_files() const { return {}; }
  /// Returns a hash that identifies the data.
  virtual std::uint64_t fingerprint() const = 0;
  /// Returns one line that describes the data.
  virtual std::string description() const = 0;
  /// Returns the paths of the data, for messages.
  virtual std::string name() const { return "the data"; }
  /// Returns which of the user's files are skipped, and how many text bytes the tokenizer cannot encode.
  virtual LeftOut left_out() const { return {}; }
};

/// Selects the part of the data that is held out of training.
enum class Split { training_and_tail, all_held_out };

struct DataOptions {
  std::vector<std::string> paths;
  FileChoice files;  ///< selects files in the directories among `paths`
  Task task = Task::text;
  std::int64_t seq_len = 256;
  std::uint64_t seed = 1;
  Bos bos = Bos::off;
  Split split = Split::training_and_tail;
  std::shared_ptr<const tokenize::TokenizerFile> tokenizer = nullptr;  ///< null: tokens are bytes
  std::string token_file = {};  ///< path of the file of token ids; used only with a tokenizer (see prepare_token_file)
};

/// Opens the data of `options`. Throws io::FileError if a file cannot be read. Throws Error if an option is invalid, or
/// if the training part or the held-out part is shorter than one sequence.
std::unique_ptr<SequenceSource> open_data(const DataOptions& options);

}  // namespace headgate::train

namespace headgate {

template <>
struct Words<train::Task> {
  static constexpr std::array<Word<train::Task>, 2> kAll{
      {{train::Task::text, "text"}, {train::Task::bigram_backcopy, "bigram-backcopy"}}};
};

template <>
struct Words<train::Bos> {
  static constexpr std::array<Word<train::Bos>, 2> kAll{{{train::Bos::off, "off"}, {train::Bos::on, "on"}}};
};

}  // namespace headgate
