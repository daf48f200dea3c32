// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// One line about work that goes on, laid out for the width of a terminal.

namespace headgate::console {

/// A part of the line.
struct LinePart {
  std::string text{};
  std::string path{};      ///< after the text; shortened in the middle where the line is short
  bool essential = false;  ///< kept even if the bar has to go
};

struct StatusLine {
  double fraction = 0.0;  ///< of the work that is done
  std::optional<double> seconds_left{};
  std::vector<LinePart> parts{};  ///< the most important one first
};

/// Columns that UTF-8 `text` takes on a terminal, at most. Control characters count as one.
std::size_t columns_of(std::string_view text);

/// `text` in at most `columns` columns: its middle is "…" where it is longer. Control characters become '?'.
std::string shortened(std::string_view text, std::size_t columns);

/// "[####....]  34%  0:12 left  PART  PART" in fewer than `columns` columns. Time left and essential parts come before
/// the bar, which shrinks down to nothing for them; other parts stand in their order where they fit.
std::string status_text(const StatusLine& line, std::size_t columns);

}  // namespace headgate::console
