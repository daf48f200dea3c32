// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/compare/terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_attention_gated.hpp"
#include "models/evaluate/gate_mean.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/massive_activation.hpp"
#include "models/evaluate/mean.hpp"
#include "models/evaluate/registry.hpp"
#include "models/io/units.hpp"
#include "models/train/metrics_record.hpp"
#include "tool/console/table.hpp"
#include "tool/console/terminal_text.hpp"
#include "tool/reports/compare/thinned.hpp"

namespace headgate::compare {

namespace {

using console::figure_text;

constexpr std::size_t kColumns = 64, kRows = 8;  // columns and rows of a chart, in characters
constexpr std::array kCharts{&train::kStepLoss,
                             &metrics::kLossNats,
                             &metrics::kFirstTokenAttention,
                             &metrics::kFirstTokenAttentionGated,
                             &metrics::kMassiveActivation,
                             &metrics::kGateMean};

/// Marks of the runs in charts, in order. Runs beyond have none.
constexpr std::string_view kMarks = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

char mark_of(std::size_t run) { return run < kMarks.size() ? kMarks[run] : ' '; }

/// Returns the columns of the table: the metric values that `headgate eval` prints and that at least one run has.
std::vector<const metrics::Figure*> columns_of(const std::vector<ComparedRun>& runs) {
  std::vector<const metrics::Figure*> out{&train::kStepLoss, &train::kStepBits};
  const auto of_models = metrics::figures_of(metrics::all_metrics(), /*of_triggers=*/false);
  out.insert(out.end(), of_models.begin(), of_models.end());
  std::erase_if(out, [&](const metrics::Figure* figure) {
    const auto has = [&](const ComparedRun& run) { return run.recorded.find(*figure) != nullptr; };
    return figure->decimals == metrics::kNoColumn || std::none_of(runs.begin(), runs.end(), has);
  });
  return out;
}

bool has_lowest(const metrics::Figure* figure) {
  const std::vector<const metrics::Figure*> with = lower_is_better();
  return std::find(with.begin(), with.end(), figure) != with.end();
}

std::string table_text(const std::vector<ComparedRun>& runs) {
  const std::vector<const metrics::Figure*> columns = columns_of(runs);
  std::vector<std::string> headings{"run", "steps", "tokens"};
  for (const metrics::Figure* figure : columns) {
    headings.emplace_back(figure->heading());
    if (has_lowest(figure)) headings.emplace_back("lowest");
  }
  console::TableLines lines = console::heading_lines(headings);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const train::RecordedRun& recorded = runs[i].recorded;
    std::vector<std::string> line{fmt::format("{}  {}", mark_of(i), console::terminal_text(runs[i].name)),
                                  fmt::format("{}", recorded.steps.back()),
                                  recorded.tokens ? fmt::format("{}", *recorded.tokens) : "-"};
    for (const metrics::Figure* figure : columns) {
      const train::Curve* curve = recorded.find(*figure);
      line.push_back(figure_text(curve == nullptr ? std::nullopt : last(*curve)));
      if (!has_lowest(figure)) continue;
      const auto at = curve == nullptr ? std::nullopt : lowest(*curve);
      line.push_back(figure_text(at ? std::optional(curve->values[*at]) : std::nullopt));
    }
    lines.push_back(std::move(line));
  }
  return console::text_table(lines);
}

/// Tracks the smallest and the largest of the numbers passed to add(). Ignores NaN.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void add(double value) {
    if (std::isnan(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// Divides the range into `cells` equal intervals and returns the index of the interval that contains `value`.
  /// Halves the numbers before subtracting, so that the difference of large values does not overflow.
  std::size_t cell(double value, std::size_t cells) const {
    const double share = (0.5 * value - 0.5 * low) / (0.5 * high - 0.5 * low);
    if (!(share > 0.0)) return 0;  // `share` is NaN if low equals high
    return share < 1.0 ? static_cast<std::size_t>(share * static_cast<double>(cells)) : cells - 1;
  }
};

/// Draws a chart of curves, one per run. In each column, the mark of a run stands at the mean of its values there.
/// "*" marks a cell that several runs share.
std::vector<std::string> plot(const std::vector<const train::Curve*>& curves, const Range& steps, const Range& values) {
  std::vector<std::string> rows(kRows, std::string(kColumns, ' '));
  for (std::size_t run = 0; run < curves.size(); ++run) {
    if (curves[run] == nullptr) continue;
    std::array<metrics::Mean, kColumns> means{};
    for (std::size_t i = 0; i < curves[run]->values.size(); ++i) {
      if (std::isnan(curves[run]->values[i])) continue;
      means[steps.cell(static_cast<double>(curves[run]->steps[i]), kColumns)].add(curves[run]->values[i]);
    }
    for (std::size_t column = 0; column < kColumns; ++column) {
      if (means[column].count == 0.0) continue;
      char& at = rows[kRows - 1 - values.cell(means[column].value(), kRows)][column];
      at = at == ' ' ? mark_of(run) : '*';
    }
  }
  return rows;
}

/// Formats a chart of one metric value over the training steps. Returns an empty string if no run has it.
std::string chart_text(const std::vector<ComparedRun>& runs, const metrics::Figure& figure) {
  std::vector<const train::Curve*> curves;
  Range steps, values;
  for (std::size_t i = 0; i < std::min(runs.size(), kMarks.size()); ++i) {
    curves.push_back(runs[i].recorded.find(figure));
    if (curves.back() == nullptr) continue;
    for (const std::int64_t step : curves.back()->steps) steps.add(static_cast<double>(step));
    for (const double value : curves.back()->values) values.add(value);
  }
  if (!(values.low <= values.high)) return "";
  const std::vector<std::string> rows = plot(curves, steps, values);
  std::string out = fmt::format("\n{:{}}{}\n", "", console::kTextIndent, figure.heading());
  out += console::paragraph(std::string(figure.meaning));
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::string label = row == 0           ? figure_text(values.high)
                              : row + 1 == kRows ? figure_text(values.low)
                                                 : std::string();
    std::string line = fmt::format("{:{}}{:>9} |{}", "", console::kTextIndent, label, rows[row]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  const std::string first = fmt::format("step {:.0f}", steps.low);
  return out + fmt::format("{:{}}{}{:>{}}\n", "", console::kTextIndent + 11, first, fmt::format("{:.0f}", steps.high),
                           kColumns - first.size());
}

}  // namespace

std::string runs_text(const std::vector<ComparedRun>& runs) {
  std::string out = table_text(runs);
  for (const ComparedRun& run : runs) {
    for (const std::string& note : notes_on(run)) {
      out += fmt::format("\n{:{}}{}: {}\n", "", console::kTextIndent, console::terminal_text(run.name), note);
    }
  }
  if (runs.size() > kMarks.size()) {
    out += fmt::format("\n{:{}}The charts show the first {} of {} runs; --out writes a page that shows all.\n", "",
                       console::kTextIndent, kMarks.size(), runs.size());
  }
  for (const metrics::Figure* figure : kCharts) out += chart_text(runs, *figure);
  return out;
}

}  // namespace headgate::compare
