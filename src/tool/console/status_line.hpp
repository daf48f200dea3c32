// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Lays out one line of progress for the width of a terminal.

namespace headgate::console {

/// One part of the status line: a text followed by a path.
struct LinePart {
  std::string text{};
  std::string path{};      ///< follows the text; shortened in the middle if the line is too short
  bool essential = false;  ///< kept even if the bar has to be dropped
};

struct StatusLine {
  double fraction = 0.0;  ///< fraction of the work that is done
  std::optional<double> seconds_left{};
  std::vector<LinePart> parts{};  ///< parts of the line, the most important one first
};

/// Returns an upper bound of the columns that UTF-8 `text` takes on a terminal. Control characters count as one.
std::size_t columns_of(std::string_view text);

/// Returns `text` in at most `columns` columns: "…" replaces the middle of a longer one. Control characters become '?'.
std::string shortened(std::string_view text, std::size_t columns);

/// Returns "[####....]  34%  0:12 left  PART  PART" in fewer than `columns` columns. The time left and essential parts
/// take precedence over the bar, which shrinks or disappears. Other parts are shown in order as far as they fit.
std::string status_text(const StatusLine& line, std::size_t columns);

}  // namespace headgate::console
