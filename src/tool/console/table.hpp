// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::console {

inline constexpr std::size_t kTextColumns = 100;  ///< columns of the longest line of a paragraph
inline constexpr std::size_t kTextIndent = 5;     ///< spaces before tables and paragraphs

using TableLines = std::vector<std::vector<std::string>>;

/// Returns the heading lines of a table. Each heading is split at '_' into one word per line, and its last word is in
/// the last line. A user types a heading by joining its words, from top to bottom, with '_'.
TableLines heading_lines(const std::vector<std::string>& headings);

/// Formats lines of cells, headings included: the first column left-aligned, the others right-aligned, each as wide as
/// needed. All lines have the same number of cells.
std::string text_table(const TableLines& lines);

/// Wraps `text` into lines of at most `columns` columns, each indented by `indent` spaces.
std::string paragraph(const std::string& text, std::size_t indent = kTextIndent, std::size_t columns = kTextColumns);

}  // namespace headgate::console
