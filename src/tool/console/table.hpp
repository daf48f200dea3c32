// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::console {

inline constexpr std::size_t kTextColumns = 100;  ///< maximum width of a line of a paragraph, in columns
inline constexpr std::size_t kTextIndent = 5;     ///< number of spaces before each line of a table or paragraph

using TableLines = std::vector<std::vector<std::string>>;

/// Splits each heading at '_' and puts each word on a line of its own, so that columns stay narrow.
/// The last words of all headings stand on the last line.
TableLines heading_lines(const std::vector<std::string>& headings);

/// Formats a table from the cells of its lines, headings included. All lines must have the same number of cells.
/// Aligns the first column to the left and the others to the right. Each column is as wide as its widest cell.
std::string text_table(const TableLines& lines);

/// Wraps the words of `text` into lines of at most `columns` columns.
/// The caller prints the first `column` columns of the first line. The other lines are indented by `indent` spaces.
std::string wrapped_words(const std::string& text, std::size_t columns, std::size_t column, std::size_t indent);

/// Wraps `text` into lines of at most `columns` columns, each indented by `indent` spaces.
std::string paragraph(const std::string& text, std::size_t indent = kTextIndent, std::size_t columns = kTextColumns);

}  // namespace headgate::console
