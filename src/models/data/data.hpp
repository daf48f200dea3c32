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

/// text: predict the bytes, or ids, of the data. bigram_backcopy: sequences drawn from the bigram table of the data,
/// see backcopy.hpp.
enum class Task { text, bigram_backcopy };

/// Whether every sequence of a text begins with the special token kBos. Sequences of bigram_backcopy always do.
enum class Bos { off, on };

inline constexpr std::int32_t kBos = tokenize::kByteBos;

/// Targets of a sequence that are not ignored, and the bytes of text that they stand for.
struct TargetText {
  std::int64_t targets = 0, bytes = 0;
};

/// A file's name and content.
struct NamedText {
  std::string name, text;
};

/// A source of sequences of T = seq_len tokens; targets(T) are the tokens that follow. A sequence depends on its index
/// alone, so that a run can be resumed at any step.
class SequenceSource {
 public:
  virtual ~SequenceSource() = default;

  virtual std::int64_t seq_len() const = 0;
  /// Token ids lie in [0, vocab()).
  virtual std::int64_t vocab() const = 0;
  /// index ≥ 0. tokens(T) =, targets(T) =.
  virtual void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const = 0;
  /// Returns the number of sequences that are never trained on.
  virtual std::int64_t held_out_count() const = 0;
  /// index in [0, held_out_count()). tokens(T) =, targets(T) =.
  virtual void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const = 0;
  /// Returns whether a token is a trigger of the task; tasks without triggers have none.
  virtual bool is_trigger(std::int32_t /*token*/) const { return false; }
  virtual bool has_triggers() const { return false; }
  /// Returns whether each token is a byte of a text.
  virtual bool tokens_are_bytes() const { return true; }
  /// Describes the targets of a held-out sequence whose tokens are not bytes; empty if their text is unknown.
  virtual std::optional<TargetText> target_text(std::int64_t /*index*/) const { return std::nullopt; }
  /// Returns the bytes of text that the targets of a training sequence stand for; empty if that is unknown.
  virtual std::optional<std::int64_t> training_bytes(std::int64_t /*index*/) const {
    return tokens_are_bytes() ? std::optional(seq_len()) : std::nullopt;
  }
  /// Returns the files, a tokenizer's, that a model trained on the data needs.
  virtual std::vector<NamedText> model_files() const { return {}; }
  /// Returns a hash that identifies the data.
  virtual std::uint64_t fingerprint() const = 0;
  /// Returns one line that describes the data.
  virtual std::string description() const = 0;
  /// Returns the files that the data comes from, for messages.
  virtual std::string name() const { return "the data"; }
  /// Returns what the paths contain that is not part of the data.
  virtual LeftOut left_out() const { return {}; }
};

/// Which part of the data is held out of training.
enum class Split { training_and_tail, all_held_out };

struct DataOptions {
  std::vector<std::string> paths;
  FileChoice files;  ///< selects files of the paths that are directories
  Task task = Task::text;
  std::int64_t seq_len = 256;
  std::uint64_t seed = 1;
  Bos bos = Bos::off;
  Split split = Split::training_and_tail;
  std::shared_ptr<const tokenize::TokenizerFile> tokenizer = nullptr;  ///< whose ids are tokens; null: bytes are
  std::string token_file = {};  ///< with a tokenizer: holds the ids (prepare_token_file)
};

/// Throws io::FileError or Error if files cannot be read, or if either side has data for less than one sequence.
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
