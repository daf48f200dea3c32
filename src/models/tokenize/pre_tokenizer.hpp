// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/words.hpp"
#include "models/tokenize/normalize.hpp"
#include "models/tokenize/pattern.hpp"
#include "models/tokenize/pending_text.hpp"

// Splits a text into words. No token of the model spans two words.

namespace headgate::tokenize {

/// Selects how matches of a pattern split the text.
enum class SplitBehavior {
  removed,
  isolated,              ///< each match is a piece of its own
  merged_with_previous,  ///< each match is the end of the piece before it
  merged_with_next,      ///< each match is the beginning of the piece after it
  contiguous,            ///< adjacent matches form one piece, and so does the text between matches
};

/// One step of splitting a text. Each step splits the pieces of the previous step.
struct SplitStep {
  std::optional<Pattern> pattern;  ///< pattern whose matches split the text; if absent, the step does not split
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;       ///< whether the step treats matches as other text, and other text as matches
  std::string prefix{};      ///< text put before each piece that does not begin with it; may be empty
  bool prefix_once = false;  ///< whether the prefix is put only before the first piece of the text
};

/// Matches one numeric character.
extern const std::string_view kDigitPattern;
/// Matches words as GPT-2 does.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;
/// Matches words as kQwen2Pattern does, but treats combining marks like letters.
extern const std::string_view kQwen35Pattern;

/// Matches words as o200k does, which is the vocabulary of GPT-4o and gpt-oss. A word ends between a lowercase and an
/// uppercase letter.
extern const std::string_view kO200kPattern;

/// A piece of text, or a part of a piece. It has the bytes `span` of PieceCutter::view().
struct Slice {
  Span span;  ///< bytes of the slice; empty if the slice only says that its piece has ended
  More more;  ///< More::may_follow if the next slice continues the same piece

  friend bool operator==(const Slice&, const Slice&) = default;
};

/// Splits a text into pieces as one SplitStep describes. Does not add the prefix of the step, which the caller does.
/// The text may arrive in several parts. Holds back text at the end of a part if a later part can change how it is
/// split.
class PieceCutter {
 public:
  explicit PieceCutter(const SplitStep& step);

  /// Takes the next part of a text. More::none marks the last part. Overwrites `slices` with the slices that later
  /// text cannot change.
  void next(std::vector<Slice>& slices, std::string_view part, More more);

  /// Returns the text to which spans refer. The view is valid until the next call of next(), as long as the
  /// part passed to next() is valid.
  std::string_view view() const { return pending_.view(); }
  /// Returns the offset of view() in the whole text, in bytes.
  std::size_t begin() const { return pending_.begin(); }

 private:
  enum class Kind { gap, match };

  void search(std::vector<Slice>& slices, More more);
  void add(std::vector<Slice>& slices, Span span, Kind kind);
  bool joins_last(bool matched) const;
  void end_piece(std::vector<Slice>& slices);
  void drop_emitted(More more);

  const SplitStep& step_;
  std::optional<PatternSearch> search_;
  PendingText pending_;
  std::size_t search_begin_ = 0;  ///< offset in view() where the search continues
  std::size_t emitted_end_ = 0;   ///< offset in view() of the first byte that is in no slice yet
  bool has_slice_ = false;        ///< whether the text has had a slice, even one that the step removed
  bool piece_open_ = false;       ///< whether the piece of the last slice has not ended yet
  bool gap_continues_ = false;    ///< whether the next part may continue the text between matches in the last slice
  bool last_matched_ = false;
};

}  // namespace headgate::tokenize

/// Names of SplitBehavior values in tokenizer.json.
template <>
struct headgate::Words<headgate::tokenize::SplitBehavior> {
  using Value = tokenize::SplitBehavior;
  static constexpr std::array<Word<Value>, 5> kAll{{{Value::removed, "Removed"},
                                                    {Value::isolated, "Isolated"},
                                                    {Value::merged_with_previous, "MergedWithPrevious"},
                                                    {Value::merged_with_next, "MergedWithNext"},
                                                    {Value::contiguous, "Contiguous"}}};
};
