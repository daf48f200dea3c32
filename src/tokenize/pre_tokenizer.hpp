// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "core/words.hpp"
#include "tokenize/normalize.hpp"
#include "tokenize/pattern.hpp"

// Cutting a text into words, within which merges stay.

namespace headgate::tokenize {

/// What becomes of the matches of a pattern.
enum class SplitBehavior {
  removed,
  isolated,              ///< each match is a piece
  merged_with_previous,  ///< each match ends the piece before it
  merged_with_next,      ///< each match begins the piece after it
  contiguous,            ///< neighbouring matches are one piece
};

/// One pass over the pieces of the pass before.
struct SplitStep {
  std::optional<Pattern> pattern;  ///< none: nothing is cut
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;        ///< what lies between the matches counts as matches
  bool prefix_space = false;  ///< a piece that does not begin with a space gets one, before it is cut
};

/// The pattern of GPT-2's words.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;

/// `pieces` = the pieces that `step` cuts a text into, but for the space in front; none is empty. `search`: of its
/// pattern, if it has one.
void cut(std::vector<Span>& pieces, std::string_view text, const SplitStep& step, PatternSearch* search);

}  // namespace headgate::tokenize

/// Their names in tokenizer.json.
template <>
struct headgate::Words<headgate::tokenize::SplitBehavior> {
  using Value = tokenize::SplitBehavior;
  static constexpr std::array<Word<Value>, 5> kAll{{{Value::removed, "Removed"},
                                                    {Value::isolated, "Isolated"},
                                                    {Value::merged_with_previous, "MergedWithPrevious"},
                                                    {Value::merged_with_next, "MergedWithNext"},
                                                    {Value::contiguous, "Contiguous"}}};
};
