// SPDX-License-Identifier: Apache-2.0
#include "tool/console/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace headgate::console {

TableLines heading_lines(const std::vector<std::string>& headings) {
  TableLines words;
  std::size_t height = 1;
  for (const std::string& heading : headings) {
    std::istringstream parts(heading);
    std::vector<std::string>& of_one = words.emplace_back();
    for (std::string word; std::getline(parts, word, '_');) of_one.push_back(word);
    height = std::max(height, of_one.size());
  }
  TableLines out(height, std::vector<std::string>(headings.size()));
  for (std::size_t column = 0; column < words.size(); ++column) {
    const std::size_t above = height - words[column].size();
    for (std::size_t i = 0; i < words[column].size(); ++i) out[above + i][column] = words[column][i];
  }
  return out;
}

std::string text_table(const TableLines& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : lines) {
    std::string row = fmt::format("{:{}}{:<{}}", "", kTextIndent, line.front(), widths.front());
    for (std::size_t i = 1; i < widths.size(); ++i) row += fmt::format("  {:>{}}", line[i], widths[i]);
    row.resize(row.find_last_not_of(' ') + 1);
    out += row + '\n';
  }
  return out;
}

std::string wrapped_words(const std::string& text, std::size_t columns, std::size_t column, std::size_t indent) {
  std::string out;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!out.empty()) {
      const bool fits = column + 1 + word.size() <= columns;
      out += fits ? " " : '\n' + std::string(indent, ' ');
      column = fits ? column + 1 : indent;
    }
    out += word;
    column += word.size();
  }
  return out;
}

std::string paragraph(const std::string& text, std::size_t indent, std::size_t columns) {
  return std::string(indent, ' ') + wrapped_words(text, columns, indent, indent) + '\n';
}

}  // namespace headgate::console
