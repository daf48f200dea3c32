// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Formats a one-line progress display that fits the width of a terminal.

namespace headgate::console {

/// A part of the status line: a text, followed by an optional path.
struct LinePart {
  std::string text{};
  std::string path{};      ///< printed after the text; if the line is too long, "…" replaces the path's middle
  bool essential = false;  ///< if the line is too long, this part takes precedence over the progress bar
};

struct StatusLine {
  double fraction = 0.0;  ///< completed fraction of the work, from 0 to 1
  std::optional<double> seconds_left{};
  std::vector<LinePart> parts{};  ///< parts of the line, most important first
};

/// Returns the largest number of columns that `text` may take on a terminal. A control character counts as one column.
std::size_t columns_of(std::string_view text);

/// Shortens `text` to at most `columns` columns by replacing its middle with "…". Replaces control characters by '?'.
std::string shortened(std::string_view text, std::size_t columns);

/// Formats the line "[####....]  34%  0:12 left  PART  PART" in fewer than `columns` columns.
/// If space is short, the bar shrinks or disappears. The remaining time and the essential parts take precedence.
/// Other parts follow in order if they still fit.
std::string status_text(const StatusLine& line, std::size_t columns);

}  // namespace headgate::console
