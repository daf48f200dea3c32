// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::console {

inline constexpr std::size_t kTextColumns = 100;  ///< of the longest line of a paragraph
inline constexpr std::size_t kTextIndent = 5;     ///< of tables and paragraphs

/// Lines of cells, the headings among them: the first cell of a line left-aligned, the others right-aligned in columns
/// as wide as they need. Every line has as many cells as the first.
std::string text_table(const std::vector<std::vector<std::string>>& lines);

/// The words of `text` in lines of at most `columns`, each behind `indent` blanks.
std::string paragraph(const std::string& text, std::size_t indent = kTextIndent, std::size_t columns = kTextColumns);

}  // namespace headgate::console
