// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace headgate::console {

/// "1.2 MB": decimal units, from kB to TB.
std::string bytes_text(double bytes);

/// "2:03:20", "3:20": hours if there are any, minutes and seconds; fractions of a second are rounded up.
std::string duration_text(double seconds);

/// Four digits of a figure, "-" where there is none.
std::string figure_text(std::optional<double> value);

}  // namespace headgate::console
