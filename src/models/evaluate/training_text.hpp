// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string>

#include "models/evaluate/figure.hpp"

namespace headgate::metrics {

/// Formats the value that `row` has for `figure`, as text for Metric::training_text. Returns an empty string if there
/// is no value.
inline std::string text_of_figure(const FigureRow& row, const Figure& figure, fmt::format_string<double> format) {
  const std::optional<double> value = row.find(figure);
  return value ? fmt::format(format, double{*value}) : "";
}

}  // namespace headgate::metrics
