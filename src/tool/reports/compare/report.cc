// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/compare/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "headgate/version.h"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/registry.hpp"
#include "models/train/metrics_record.hpp"
#include "tool/reports/compare/page_files.hpp"
#include "tool/reports/compare/thinned.hpp"
#include "tool/reports/page/page.hpp"

namespace headgate::compare {

namespace {

using nlohmann::ordered_json;

/// Returns the definition of the metric that computes the value `figure`. Returns an empty string if no metric does.
std::string_view definition_of(const metrics::Figure& figure) {
  for (const metrics::Metric* metric : metrics::all_metrics()) {
    for (const metrics::Figure& given : metric->figures) {
      if (given.key == figure.key) return metric->definition;
    }
  }
  return {};
}

/// Describes the figures (named metric values) that at least one run has recorded, each with an explanation.
/// For a figure about trigger tokens, the explanation is the definition of its metric.
ordered_json figures_json(const std::vector<ComparedRun>& runs) {
  ordered_json out = ordered_json::array();
  for (const metrics::Figure* figure : train::recorded_figures()) {
    const auto has = [&](const ComparedRun& run) { return run.recorded.find(*figure) != nullptr; };
    if (std::none_of(runs.begin(), runs.end(), has)) continue;
    out.push_back(page::figure_json(*figure));
    if (figure->meaning.empty()) out.back()["sentence"] = fmt::format("{}.", definition_of(*figure));
  }
  return out;
}

ordered_json curve_json(const train::Curve& curve, std::size_t points) {
  ordered_json steps = ordered_json::array(), values = ordered_json::array();
  for (const std::size_t i : thinned(curve, points)) {
    steps.push_back(curve.steps[i]);
    values.push_back(page::rounded(curve.values[i]));
  }
  return {{"steps", std::move(steps)}, {"values", std::move(values)}};
}

ordered_json run_json(const ComparedRun& run, std::size_t points) {
  const train::RecordedRun& recorded = run.recorded;
  ordered_json curves = ordered_json::object(), last_values = curves, lowest_values = curves;
  for (const train::Curve& curve : recorded.curves) {
    const std::optional<double> value = last(curve);
    last_values[std::string(curve.figure->key)] = value ? ordered_json(*value) : ordered_json();
    curves[std::string(curve.figure->key)] = curve_json(curve, points);
  }
  for (const metrics::Figure* figure : lower_is_better()) {
    const train::Curve* curve = recorded.find(*figure);
    if (curve == nullptr) continue;
    const std::size_t at = lowest(*curve).value();  // does not throw: every curve has a value that is not NaN
    lowest_values[std::string(figure->key)] = {{"step", curve->steps[at]}, {"value", curve->values[at]}};
  }
  return {{"name", run.name},
          {"steps", recorded.steps.back()},
          {"tokens", recorded.tokens ? ordered_json(*recorded.tokens) : ordered_json()},
          {"records", recorded.steps.size()},
          {"spikes", recorded.spikes},
          {"notes", notes_on(run)},
          {"last", std::move(last_values)},
          {"lowest", std::move(lowest_values)},
          {"curves", std::move(curves)}};
}

}  // namespace

std::vector<ComparedRun> read_runs(const std::vector<std::string>& directories) {
  std::vector<ComparedRun> out;
  out.reserve(directories.size());
  for (const std::string& run : directories) out.push_back({run, train::read_run(run)});
  return out;
}

std::vector<const metrics::Figure*> lower_is_better() { return {&train::kStepLoss, &metrics::kLossNats}; }

std::vector<std::string> notes_on(const ComparedRun& run) {
  std::vector<std::string> out;
  if (run.recorded.cut_off) out.emplace_back("the last line of metrics.jsonl is cut off and left out");
  if (run.recorded.replaced > 0) {
    out.push_back(fmt::format("{} records are left out: later ones repeat their steps", run.recorded.replaced));
  }
  return out;
}

ordered_json report_json(const std::vector<ComparedRun>& runs, std::size_t points) {
  ordered_json out = {{"headgate", HEADGATE_VERSION}, {"figures", figures_json(runs)}};
  ordered_json list = ordered_json::array();
  for (const ComparedRun& run : runs) list.push_back(run_json(run, points));
  out["runs"] = std::move(list);
  return out;
}

std::string report_page(const ordered_json& report) {
  return page::page_of({.body = kPageHtml, .css = kPageCss, .js = kPageJs}, report);
}

}  // namespace headgate::compare
