// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::console {

inline constexpr std::size_t kTextColumns = 100;  ///< the longest line of a paragraph

/// Lines of cells, the headings among them: the first cell of a line left-aligned, the others right-aligned in columns
/// as wide as they need. Every line has as many cells as the first.
std::string text_table(const std::vector<std::vector<std::string>>& lines);

/// `text` in lines of at most kTextColumns, indented as tables are.
std::string paragraph(const std::string& text);

}  // namespace headgate::console
