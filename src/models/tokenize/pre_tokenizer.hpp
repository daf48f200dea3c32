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

// Splits a text into words. Merges never cross the bounds of a word.

namespace headgate::tokenize {

/// What happens to the matches of a pattern.
enum class SplitBehavior {
  removed,
  isolated,              ///< each match is a piece
  merged_with_previous,  ///< each match ends the piece before it
  merged_with_next,      ///< each match begins the piece after it
  contiguous,            ///< neighbouring matches are one piece
};

/// One pass over the pieces of the previous pass.
struct SplitStep {
  std::optional<Pattern> pattern;  ///< none: nothing is split
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;       ///< the text between matches is treated as the matches
  std::string prefix{};      ///< a character; a piece that does not begin with it gets it before it is split
  bool prefix_once = false;  ///< only the piece at the beginning of the text gets the prefix
};

/// Isolates each digit.
extern const std::string_view kDigitPattern;
/// Matches GPT-2's words.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;
/// Matches Qwen 2's words, and counts combining marks as letters.
extern const std::string_view kQwen35Pattern;

/// Matches the words of o200k, of GPT-4o and gpt-oss: a change from small to capital letters begins a word.
extern const std::string_view kO200kPattern;

/// A part of a piece: `span` of PieceCutter::view().
struct Slice {
  Span span;  ///< may be empty where it ends a piece that earlier slices began
  Tail tail;  ///< open: the next slice belongs to the same piece

  friend bool operator==(const Slice&, const Slice&) = default;
};

/// Splits texts into the pieces of a step; the caller adds the step's prefix. A text may come in parts: text is
/// held back while a continuation may change the pieces.
class PieceCutter {
 public:
  explicit PieceCutter(const SplitStep& step);

  /// Takes the next part of a text; after Tail::ended, another text begins. Overwrites `slices` with those that are
  /// final.
  void next(std::vector<Slice>& slices, std::string_view part, Tail tail);

  /// Returns the text that spans refer to, valid until the next call of next() and while the part is.
  std::string_view view() const { return held_.view(); }
  /// Returns the position of view() in the text.
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
  std::size_t from_ = 0;  ///< in view(): where the search continues
  std::size_t done_ = 0;  ///< in view(): everything before it is in slices
  bool begun_ = false;    ///< the text has had a slice, or a removed one
  bool open_ = false;     ///< the last slice has Tail::open
  bool in_gap_ = false;   ///< text from done_ to the next match belongs to the last slice
  bool last_matched_ = false;
};

}  // namespace headgate::tokenize

/// Names in tokenizer.json.
template <>
struct headgate::Words<headgate::tokenize::SplitBehavior> {
  using Value = tokenize::SplitBehavior;
  static constexpr std::array<Word<Value>, 5> kAll{{{Value::removed, "Removed"},
                                                    {Value::isolated, "Isolated"},
                                                    {Value::merged_with_previous, "MergedWithPrevious"},
                                                    {Value::merged_with_next, "MergedWithNext"},
                                                    {Value::contiguous, "Contiguous"}}};
};
