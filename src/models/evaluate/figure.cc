// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/figure.hpp"

#include <algorithm>
#include <cmath>

#include "library/core/check.hpp"

namespace headgate::metrics {

void FigureRow::set(const Figure& figure, std::optional<double> value) {
  for (Entry& entry : entries_) {
    if (entry.figure->key == figure.key) {
      entry.value = value;
      return;
    }
  }
  entries_.push_back({&figure, value});
}

std::optional<double> FigureRow::find(const Figure& figure) const {
  for (const Entry& entry : entries_) {
    if (entry.figure->key == figure.key) return entry.value;
  }
  return std::nullopt;
}

double FigureRow::at(const Figure& figure) const {
  const std::optional<double> value = find(figure);
  require(value.has_value(), "the evaluation has no {}", figure.key);
  return *value;
}

bool is_finite(const FigureRow& row) {
  return std::all_of(row.entries().begin(), row.entries().end(), [](const FigureRow::Entry& entry) {
    return !entry.value || std::isfinite(*entry.value) || (entry.figure->may_overflow && std::isinf(*entry.value));
  });
}

}  // namespace headgate::metrics
