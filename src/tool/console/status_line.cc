// SPDX-License-Identifier: Apache-2.0
#include "tool/console/status_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/io/units.hpp"

namespace headgate::console {
namespace {

constexpr std::string_view kBetween = "  ";
constexpr std::string_view kEllipsis = "…";

struct Character {
  std::string_view bytes;
  std::size_t columns;
};

/// Returns the first character of `text`, which must not be empty. A byte of invalid UTF-8 counts as a character.
Character first_character(std::string_view text) {
  // First byte of U+1000 in UTF-8. Characters from U+1000 on count as two columns.
  constexpr unsigned char kFirstWide = 0xE1;
  const auto lead = static_cast<unsigned char>(text.front());
  std::size_t bytes = lead < 0xC0 || lead > 0xF7 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const std::string_view rest = text.substr(1, bytes - 1);
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; };
  if (rest.size() != bytes - 1 || !std::all_of(rest.begin(), rest.end(), continues)) bytes = 1;
  const bool narrow = bytes == 1 || lead < kFirstWide || text.starts_with(kEllipsis);
  return {text.substr(0, bytes), narrow ? 1U : 2U};
}

std::vector<Character> characters_of(std::string_view text) {
  std::vector<Character> out;
  while (!text.empty()) {
    out.push_back(first_character(text));
    text.remove_prefix(out.back().bytes.size());
  }
  return out;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

/// Returns the longest prefix of the characters [begin, end) that fits in `columns` columns.
template <class Iterator>
std::vector<Character> fitting(Iterator begin, Iterator end, std::size_t columns) {
  std::vector<Character> out;
  for (; begin != end && begin->columns <= columns; ++begin) {
    columns -= begin->columns;
    out.push_back(*begin);
  }
  return out;
}

/// Formats one part of the status line in at most `columns` columns. If the part is too long, tries in this order:
/// - the text and a shortened path
/// - only a shortened path
/// - an empty string
std::string fitted(const LinePart& part, std::size_t columns) {
  constexpr std::size_t kLeastPath = 8;
  const std::size_t text = columns_of(part.text);
  if (text + columns_of(part.path) <= columns) return shortened(part.text + part.path, columns);
  if (part.path.empty() || columns < kLeastPath) return "";
  const bool with_text = text + kLeastPath + columns_of(kEllipsis) <= columns;
  return with_text ? part.text + shortened(part.path, columns - text) : shortened(part.path, columns);
}

/// Formats the bar "[####....] ", with at most columns / 6 characters between the brackets.
/// Returns an empty string if fewer than three characters fit.
/// `columns`: width of the whole line. `left`: width that is still free.
std::string bar_text(double fraction, std::size_t columns, std::size_t left) {
  constexpr std::size_t kLeast = 3, kBrackets = 3;
  const std::size_t most = columns / 6;
  if (left < kLeast + kBrackets || most < kLeast) return "";
  const std::size_t width = std::min(left - kBrackets, most);
  const auto filled = static_cast<std::size_t>(fraction * static_cast<double>(width));
  return fmt::format("[{}{}] ", std::string(filled, '#'), std::string(width - filled, '.'));
}

}  // namespace

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  for (const Character& character : characters_of(text)) columns += character.columns;
  return columns;
}

std::string shortened(std::string_view text, std::size_t columns) {
  const std::vector<Character> all = characters_of(text);
  std::string out;
  if (columns_of(text) <= columns) {
    out = text;
  } else if (columns > 0) {
    const std::size_t kept = columns - 1;
    // If the number of kept columns is odd, the end of the text gets the extra column. The end holds the name of the
    // file.
    const std::vector<Character> end = fitting(all.rbegin(), all.rend(), (kept + 1) / 2);
    for (const Character& c : fitting(all.begin(), all.end(), kept / 2)) out += c.bytes;
    out += kEllipsis;
    std::for_each(end.rbegin(), end.rend(), [&out](const Character& c) { out += c.bytes; });
  }
  std::replace_if(out.begin(), out.end(), is_control, '?');
  return out;
}

std::string status_text(const StatusLine& line, std::size_t columns) {
  const double fraction = std::clamp(line.fraction, 0.0, 1.0);
  std::vector<LinePart> parts = line.parts;
  if (line.seconds_left) {
    parts.insert(parts.begin(), {.text = duration_text(*line.seconds_left) + " left", .essential = true});
  }
  std::string out = fmt::format("{:3.0f}%", 100.0 * fraction);
  std::size_t left = columns > out.size() ? columns - 1 - out.size() : 0;  // some terminals wrap at the last column
  std::size_t reserved = 0;  // columns for the parts that must be shown (LinePart::essential)
  for (const LinePart& part : parts) {
    if (part.essential) reserved += kBetween.size() + columns_of(part.text + part.path);
  }
  const std::string bar = bar_text(fraction, columns, left > reserved ? left - reserved : 0);
  left -= std::min(left, bar.size());
  out.insert(0, bar);
  for (const LinePart& part : parts) {
    const std::size_t own = kBetween.size() + columns_of(part.text + part.path);
    if (part.essential) reserved -= own;
    const std::size_t room = part.essential ? left : left - std::min(left, reserved);
    if (room <= kBetween.size()) continue;
    const std::string text = fitted(part, room - kBetween.size());
    if (text.empty()) continue;
    out += kBetween;
    out += text;
    left -= kBetween.size() + columns_of(text);
  }
  return out;
}

}  // namespace headgate::console
