// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/words.hpp"
#include "models/tokenize/held_text.hpp"
#include "models/tokenize/normalize.hpp"
#include "models/tokenize/pattern.hpp"

// Splits a text into words. Merges never cross word boundaries.

namespace headgate::tokenize {

/// Selects how matches of a pattern split the text.
enum class SplitBehavior {
  removed,
  isolated,              ///< each match is a piece
  merged_with_previous,  ///< each match ends the piece before it
  merged_with_next,      ///< each match begins the piece after it
  contiguous,            ///< adjacent matches form one piece
};

/// One step of splitting a text. It is applied to each piece of the previous step.
struct SplitStep {
  std::optional<Pattern> pattern;  ///< if absent, the step does not split
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;       ///< swaps the roles of matches and the text between them
  std::string prefix{};      ///< is put before each piece that does not begin with it; may be empty
  bool prefix_once = false;  ///< puts the prefix only before the first piece of the text
};

/// Matches one numeric character.
extern const std::string_view kDigitPattern;
/// Matches GPT-2's words.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;
/// Matches words as Qwen 2's pattern does, but treats combining marks as letters.
extern const std::string_view kQwen35Pattern;

/// Matches the words of o200k, the vocabulary of GPT-4o and gpt-oss. A word ends between a lowercase and an uppercase
/// letter.
extern const std::string_view kO200kPattern;

/// A piece, or a part of one: the bytes `span` of PieceCutter::view().
struct Slice {
  Span span;  ///< may be empty, if the slice only ends a piece
  Tail tail;  ///< Tail::open if the next slice continues the same piece

  friend bool operator==(const Slice&, const Slice&) = default;
};

/// Splits texts into the pieces of one SplitStep. The caller adds the step's prefix. A text may come in several parts;
/// the cutter holds back text whose split depends on later parts.
class PieceCutter {
 public:
  explicit PieceCutter(const SplitStep& step);

  /// Takes the next part of a text; Tail::ended marks the last one. Overwrites `slices` with the slices that further
  /// text cannot change.
  void next(std::vector<Slice>& slices, std::string_view part, Tail tail);

  /// Returns the text to which spans refer. The view is valid until the next call of next(), and only while the part
  /// passed to next() is valid.
  std::string_view view() const { return held_.view(); }
  /// Returns the byte offset of view() in the whole text.
  std::size_t begin() const { return held_.begin(); }

 private:
  enum class Kind { gap, match };

  void search(std::vector<Slice>& slices, Tail tail);
  void add(std::vector<Slice>& slices, Span span, Kind kind);
  bool joins_last(bool matched) const;
  void end_piece(std::vector<Slice>& slices);
  void forget(Tail tail);

  const SplitStep& step_;
  std::optional<PatternSearch> search_;
  HeldText held_;
  std::size_t from_ = 0;  ///< offset in view() where the search continues
  std::size_t done_ = 0;  ///< offset in view() up to which all text is in slices
  bool begun_ = false;    ///< true after the first slice of the text, even a removed one
  bool open_ = false;     ///< true if the last slice has Tail::open
  bool in_gap_ = false;   ///< true if text between done_ and the next match continues the last slice
  bool last_matched_ = false;
};

}  // namespace headgate::tokenize

/// Names of SplitBehavior in tokenizer.json.
template <>
struct headgate::Words<headgate::tokenize::SplitBehavior> {
  using Value = tokenize::SplitBehavior;
  static constexpr std::array<Word<Value>, 5> kAll{{{Value::removed, "Removed"},
                                                    {Value::isolated, "Isolated"},
                                                    {Value::merged_with_previous, "MergedWithPrevious"},
                                                    {Value::merged_with_next, "MergedWithNext"},
                                                    {Value::contiguous, "Contiguous"}}};
};
