// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace headgate::console {

/// Returns "1.2 MB": decimal units, from kB to TB.
std::string bytes_text(double bytes);

/// Returns "2:03:20" or "3:20": hours if there are any, minutes and seconds. Rounds fractions of a second up.
std::string duration_text(double seconds);

/// Returns four digits of a figure, "-" if it is absent.
std::string figure_text(std::optional<double> value);

/// Returns "97%", or "0.4%" if whole per cents would be too coarse.
std::string percent_text(double share);

}  // namespace headgate::console
