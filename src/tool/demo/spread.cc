// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/spread.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "models/io/units.hpp"

namespace headgate::demo {

using console::percent_text;

Spread spread_of(const std::vector<metrics::FigureRow>& rows) {
  Spread out;
  out.runs = rows.size();
  for (const metrics::FigureRow::Entry& entry : rows.front().entries()) {
    const metrics::Figure& figure = *entry.figure;
    std::optional<double> sum = 0.0, least, most;
    for (const metrics::FigureRow& row : rows) {
      const std::optional<double> value = row.find(figure);
      if (!value || !sum) {
        sum = least = most = std::nullopt;
        break;
      }
      *sum += *value;
      least = std::min(least.value_or(*value), *value);
      most = std::max(most.value_or(*value), *value);
    }
    if (sum) *sum /= static_cast<double>(rows.size());
    out.mean.set(figure, sum);
    out.least.set(figure, least);
    out.most.set(figure, most);
  }
  return out;
}

std::string percent(const Spread& spread, const metrics::Figure& figure) {
  const std::string mean = percent_text(spread.mean.at(figure));
  const std::string least = percent_text(spread.least.at(figure)), most = percent_text(spread.most.at(figure));
  return least == most ? mean : fmt::format("{} ({} to {})", mean, least, most);
}

}  // namespace headgate::demo
