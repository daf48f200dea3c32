// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace headgate::console {

/// Formats a number of bytes in decimal units, from kB to TB, such as "1.2 MB".
std::string bytes_text(double bytes);

/// Formats a duration as hours (if any), minutes and seconds, such as "2:03:20" or "3:20". Rounds fractions of a second
/// up.
std::string duration_text(double seconds);

/// Formats a value with four significant digits. Returns "-" if it is absent.
std::string figure_text(std::optional<double> value);

/// Formats a fraction as a percentage, such as "97%". Below 1%, adds one decimal, such as "0.4%".
std::string percent_text(double share);

}  // namespace headgate::console
