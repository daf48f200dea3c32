// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::cli {

inline constexpr std::size_t kDemoColumns = 100;  ///< that a line of the demo fits

/// Lines of cells, the headings among them: the first cell of a line left-aligned, the others right-aligned in columns
/// as wide as they need. Every line has as many cells as the first.
std::string text_table(const std::vector<std::vector<std::string>>& lines);

/// `text` in lines of at most kDemoColumns, indented like the demo's tables.
std::string paragraph(const std::string& text);

}  // namespace headgate::cli
