// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "library/core/words.hpp"
#include "models/evaluate/attention_entropy.hpp"
#include "models/evaluate/beta.hpp"
#include "models/evaluate/decay.hpp"
#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/gate_mean.hpp"
#include "models/evaluate/hidden_first_token.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/evaluate/output_gate.hpp"
#include "models/evaluate/sink_attention.hpp"
#include "models/evaluate/state_rank.hpp"
#include "models/io/units.hpp"
#include "models/layers/gate_variant.hpp"
#include "tool/console/table.hpp"
#include "tool/console/terminal_text.hpp"
#include "tool/reports/xray/verdict.hpp"

namespace headgate::xray {

namespace {

/// A colour scale from dark blue to bright yellow, in the 256-colour palette. Colour-blind readers can distinguish its
/// colours.
constexpr std::array kColours{17, 18, 24, 30, 36, 72, 108, 144, 179, 220, 226};
constexpr std::string_view kShades = " .:-=+*#%@";

/// A map that shows one metric value of each head. A value of `largest` or more gets the last colour of the scale.
struct Map {
  const metrics::Figure* figure;
  double largest;
};

template <class Steps>
std::size_t step_of(double value, double largest, const Steps& steps) {
  const double last = static_cast<double>(steps.size() - 1);
  const double place = std::round(last * value / largest);
  return place > 0.0 ? static_cast<std::size_t>(std::min(place, last)) : 0;
}

std::string cell(std::optional<double> value, double largest, MapStyle style) {
  if (!value) return "- ";
  if (!std::isfinite(*value)) return "? ";
  if (style == MapStyle::shades) return std::string(2, kShades[step_of(*value, largest, kShades)]);
  return fmt::format("\x1b[48;5;{}m  \x1b[0m", kColours[step_of(*value, largest, kColours)]);
}

/// Draws the maps of a model side by side, with a line for each layer. Omits layers in which no head has a value.
std::string maps_text(const std::string& heading, const ModelXray& model, const std::vector<Map>& maps,
                      MapStyle style) {
  const auto& heads = model.evaluation.report.heads;
  std::size_t width = 24;
  for (const std::vector<metrics::FigureRow>& layer : heads) width = std::max(width, 2 * layer.size());
  std::string out = fmt::format("\n{}\n{:5}", heading, "");
  for (const Map& map : maps)
    out += fmt::format("  {:{}}", fmt::format("{}, 0 to {:.2g}", map.figure->key, map.largest), width);
  out.erase(out.find_last_not_of(' ') + 1);
  out += '\n';
  const auto has_some = [&](const metrics::FigureRow& head) {
    return std::any_of(maps.begin(), maps.end(), [&](const Map& map) { return head.find(*map.figure).has_value(); });
  };
  for (std::size_t layer = 0; layer < heads.size(); ++layer) {
    if (std::none_of(heads[layer].begin(), heads[layer].end(), has_some)) continue;
    out += fmt::format("{:5}", layer);
    for (const Map& map : maps) {
      out += "  ";
      for (const metrics::FigureRow& head : heads[layer]) out += cell(head.find(*map.figure), map.largest, style);
      if (&map != &maps.back()) out.append(width - 2 * heads[layer].size(), ' ');
    }
    out += '\n';
  }
  return out;
}

std::vector<Map> maps_of(const ModelXray& model) {
  double largest_entropy = 0.0;
  for (const std::vector<metrics::FigureRow>& layer : model.evaluation.report.heads) {
    for (const metrics::FigureRow& head : layer) {
      largest_entropy = std::max(largest_entropy, head.or_zero(metrics::kAttentionEntropy));
    }
  }
  std::vector<Map> maps{{&metrics::kFirstTokenAttention, 1.0},
                        {&metrics::kAttentionEntropy, largest_entropy > 0.0 ? largest_entropy : 1.0}};
  if (model.config.gate.sinks != layers::SinkKind::none) maps.push_back({&metrics::kSinkAttention, 1.0});
  if (layers::has_gate(model.config.gate)) maps.push_back({&metrics::kGateMean, 1.0});
  return maps;
}

std::vector<Map> maps_of_value_heads() {
  return {{&metrics::kHiddenFirstToken, 1.0}, {&metrics::kMeanDecay, 1.0}, {&metrics::kOutputGateMean, 1.0}};
}

std::string shown_name(const ModelXray& model) { return console::terminal_text(model.name); }

std::string figure_cell(std::optional<double> value, int decimals) {
  return value ? fmt::format("{:.{}f}", *value, decimals) : "-";
}

/// A column of the table of layers: the metric value that it shows, and the number of decimals.
struct LayerColumn {
  const metrics::Figure* figure;
  int decimals;
};
constexpr std::array kLayerColumns{LayerColumn{&metrics::kFirstTokenAttention, 4},
                                   LayerColumn{&metrics::kGateMean, 4},
                                   LayerColumn{&metrics::kHiddenFirstToken, 4},
                                   LayerColumn{&metrics::kOutputGateMean, 4},
                                   LayerColumn{&metrics::kMeanDecay, 4},
                                   LayerColumn{&metrics::kHalfLife, 1},
                                   LayerColumn{&metrics::kMeanBeta, 4},
                                   LayerColumn{&metrics::kStateRank, 2},
                                   LayerColumn{&kMeanDistance, 1}};

/// Formats a table of a model's layers, with a bar that shows the mean attention distance of each.
/// Returns an empty string if all layers are of one type.
std::string layers_text(const ModelXray& model) {
  const std::vector<metrics::FigureRow>& layers = model.evaluation.report.layers;
  if (model.config.layer_types.empty()) return {};
  constexpr int kBar = 24;
  double farthest = 0.0;
  for (const metrics::FigureRow& row : layers) farthest = std::max(farthest, row.or_zero(kMeanDistance));
  std::vector<LayerColumn> columns(kLayerColumns.begin(), kLayerColumns.end());
  std::erase_if(columns, [&layers](const LayerColumn& column) {
    const auto has = [&column](const metrics::FigureRow& row) { return row.find(*column.figure).has_value(); };
    return std::none_of(layers.begin(), layers.end(), has);
  });
  std::vector<std::string> headings{"layer", "type", "heads"};
  for (const LayerColumn& column : columns) headings.emplace_back(column.figure->key);
  headings.emplace_back("");
  console::TableLines lines = console::heading_lines(headings);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const metrics::FigureRow& row = layers[i];
    const double distance = row.or_zero(kMeanDistance);
    const double share = farthest > 0.0 && std::isfinite(distance) ? distance / farthest : 0.0;
    const std::string bar(static_cast<std::size_t>(std::round(kBar * share)), '=');
    const auto type = word_of(type_of(model.config, static_cast<std::int64_t>(i)));
    std::vector<std::string>& line = lines.emplace_back();
    line = {fmt::format("{}", i), std::string(type), fmt::format("{}", model.evaluation.report.heads[i].size())};
    for (const auto& [figure, decimals] : columns) line.push_back(figure_cell(row.find(*figure), decimals));
    line.push_back(fmt::format(" {:{}}", bar, kBar));
  }
  return fmt::format("\n{}: layers, and how many tokens back they look on average\n{}", shown_name(model),
                     console::text_table(lines));
}

/// The change of the loss due to one override, with the name of the overridden head or layer.
struct Change {
  std::string where;
  double value;
};

/// Returns the change of the loss for each overridden head or layer, largest first.
/// `figure` selects the kind of override.
/// Changes that are not finite come last.
std::vector<Change> changes_of(const ModelXray& model, const metrics::Figure& figure) {
  std::vector<Change> out;
  const metrics::Report& report = model.evaluation.report;
  const auto add = [&](std::string where, const metrics::FigureRow& row) {
    if (const std::optional<double> value = row.find(figure)) out.push_back({std::move(where), *value});
  };
  for (std::size_t layer = 0; layer < report.layers.size(); ++layer) {
    if (model.overrides->part == OverriddenPart::layers) {
      add(fmt::format("layer {}", layer), report.layers[layer]);
      continue;
    }
    for (std::size_t h = 0; h < report.heads[layer].size(); ++h) {
      add(fmt::format("layer {} head {}", layer, h), report.heads[layer][h]);
    }
  }
  const auto order = [](double x) { return std::isfinite(x) ? x : -HUGE_VAL; };
  std::stable_sort(out.begin(), out.end(),
                   [&](const Change& a, const Change& b) { return order(a.value) > order(b.value); });
  return out;
}

/// Formats a line for each kind of override: the three largest changes of the loss and the smallest one.
/// If the model does not support an override, the line gives the reason.
std::string change_lines(const ModelXray& model) {
  constexpr std::size_t kLargest = 3;
  std::string out;
  for (const OverrideRow& row : kOverrides) {
    out += fmt::format("     {:7}", row.word);
    const std::vector<Change> changes = changes_of(model, row.figure);
    if (changes.empty()) {
      out += fmt::format("left out: {}\n", reason_left_out(model.config, row.value));
      continue;
    }
    for (std::size_t i = 0; i < std::min(kLargest, changes.size()); ++i) {
      out += fmt::format("{}{:+.4f} {}", i == 0 ? "" : ", ", changes[i].value, changes[i].where);
    }
    if (changes.size() > kLargest) out += fmt::format(" … {:+.4f} {}", changes.back().value, changes.back().where);
    out += '\n';
  }
  return out;
}

/// Formats a table of the changes of the loss. Each layer has a line, and each kind of override has a column.
std::string change_table(const ModelXray& model) {
  const std::vector<const OverrideRow*> kinds = overrides_of(model.config);
  std::vector<std::vector<std::string>> lines{{"layer"}};
  for (const OverrideRow* row : kinds) lines[0].emplace_back(row->word);
  for (std::size_t layer = 0; layer < model.evaluation.report.layers.size(); ++layer) {
    lines.push_back({fmt::format("{}", layer)});
    for (const OverrideRow* row : kinds) {
      const std::optional<double> value = model.evaluation.report.layers[layer].find(row->figure);
      lines.back().push_back(value ? fmt::format("{:+.4f}", *value) : "-");
    }
  }
  return '\n' + console::text_table(lines);
}

std::string overrides_text(const ModelXray& model, MapStyle style) {
  const OverrideRun& run = *model.overrides;
  const std::string heading =
      fmt::format("{}: rise of the loss, {:.4f} nats a token on the first {} tokens, with overrides of {}",
                  shown_name(model), run.loss, run.tokens, word_of(run.part));
  if (run.part == OverriddenPart::layers)
    return fmt::format("\n{}\n{}{}", heading, change_lines(model), change_table(model));
  std::vector<Map> maps;
  for (const OverrideRow* row : overrides_of(model.config)) {
    const double largest = changes_of(model, row->figure).front().value;
    maps.push_back({&row->figure, largest > 0.0 ? largest : 1.0});
  }
  return maps_text(heading, model, maps, style) + change_lines(model);
}

}  // namespace

nlohmann::ordered_json list_json() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  const auto add = [&out](std::string_view name, std::string_view of, std::string_view definition) {
    out.push_back({{"name", name}, {"of", of}, {"definition", definition}});
  };
  for (const metrics::Metric* metric : xray_metrics()) {
    add(metric->name, metric->of_heads ? "of heads too" : "", metric->definition);
  }
  for (const metrics::Figure* figure : collected_figures()) add(figure->key, "of heads", figure->meaning);
  for (const OverrideRow& row : kOverrides)
    add(row.figure.key, "of heads or layers, with --override", row.figure.meaning);
  return out;
}

std::string list_text() {
  std::string out;
  for (const auto& figure : list_json()) {
    const auto text = [&figure](const char* key) { return figure.at(key).get<std::string>(); };
    const std::string of = text("of").empty() ? "" : fmt::format(" ({})", text("of"));
    out += fmt::format("{}{}\n    {}\n", text("name"), of, text("definition"));
  }
  return out;
}

std::string verdicts_text(const std::vector<ModelXray>& models) {
  std::string out;
  for (const ModelXray& model : models) {
    out += console::paragraph(fmt::format("{}: {}", shown_name(model), verdict(model)));
  }
  return out;
}

std::string headline_text(const std::vector<ModelXray>& models, MapStyle style) {
  console::TableLines lines{{"model"}, {"gate"}, {"parameters"}, {"tokens, one sequence"}};
  for (const ModelXray& model : models) {
    lines[0].push_back(shown_name(model));
    lines[1].push_back(layers::gate_name(model.config.gate));
    lines[2].push_back(fmt::format("{}", models::parameter_count(model.config)));
    lines[3].push_back(fmt::format("{}", model.pieces.size()));
  }
  for (const metrics::Figure* figure : figures_of(models)) {
    std::vector<std::string> line{std::string(figure->key)};
    bool any = false;
    for (const ModelXray& model : models) {
      const std::optional<double> value = model.evaluation.report.overall.find(*figure);
      line.push_back(console::figure_text(value));
      any = any || value;
    }
    if (any) lines.push_back(std::move(line));
  }
  std::string out = verdicts_text(models) + '\n' + console::text_table(lines);
  for (const ModelXray& model : models) {
    out += layers_text(model);
    if (metrics::most_query_heads(model.config) > 0) out += maps_text(shown_name(model), model, maps_of(model), style);
    if (metrics::value_heads(model.config) > 0) {
      out += maps_text(shown_name(model) + ": value heads of linear attention", model, maps_of_value_heads(), style);
    }
    if (model.overrides) out += overrides_text(model, style);
  }
  return out;
}

}  // namespace headgate::xray
