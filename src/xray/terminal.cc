// SPDX-License-Identifier: Apache-2.0
#include "xray/terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>

#include "console/table.hpp"
#include "console/units.hpp"
#include "layers/gate_variant.hpp"
#include "metrics/attention_entropy.hpp"
#include "metrics/first_token_attention.hpp"
#include "metrics/gate_mean.hpp"

namespace headgate::xray {

namespace {

/// From dark to bright, of the palette of 256 colours: blue to yellow, which the colour-blind tell apart.
constexpr std::array kColours{17, 18, 24, 30, 36, 72, 108, 144, 179, 220, 226};
constexpr std::string_view kShades = " .:-=+*#%@";

/// A figure of heads as a map; values of `largest` and more have the last colour.
struct Map {
  const metrics::Figure* figure;
  std::string_view title;
  double largest;
};

template <class Steps>
std::size_t step_of(double value, double largest, const Steps& steps) {
  const double last = static_cast<double>(steps.size() - 1);
  const double place = std::round(last * value / largest);
  return place > 0.0 ? static_cast<std::size_t>(std::min(place, last)) : 0;
}

std::string cell(std::optional<double> value, double largest, MapStyle style) {
  if (!value || !std::isfinite(*value)) return "? ";
  if (style == MapStyle::shades) return std::string(2, kShades[step_of(*value, largest, kShades)]);
  return fmt::format("\x1b[48;5;{}m  \x1b[0m", kColours[step_of(*value, largest, kColours)]);
}

/// The maps of a model beside each other.
std::string maps_text(const ModelXray& model, const std::vector<Map>& maps, MapStyle style) {
  const auto& heads = model.evaluation.report.heads;
  const std::size_t width = std::max<std::size_t>(2 * heads.front().size(), 24);
  std::string out = fmt::format("\n{}\n{:5}", model.name, "");
  for (const Map& map : maps)
    out += fmt::format("  {:{}}", fmt::format("{}, 0 to {:.2g}", map.title, map.largest), width);
  out.erase(out.find_last_not_of(' ') + 1);
  out += '\n';
  for (std::size_t layer = 0; layer < heads.size(); ++layer) {
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
  std::vector<Map> maps{{&metrics::kFirstTokenAttention, "attention on first token", 1.0},
                        {&metrics::kAttentionEntropy, "entropy", largest_entropy > 0.0 ? largest_entropy : 1.0}};
  if (layers::has_gate(model.config.gate)) maps.push_back({&metrics::kGateMean, "mean gate", 1.0});
  return maps;
}

}  // namespace

std::string headline_text(const std::vector<ModelXray>& models, MapStyle style) {
  std::vector<std::vector<std::string>> lines{{"model"}, {"gate"}, {"parameters"}, {"tokens"}};
  for (const ModelXray& model : models) {
    lines[0].push_back(model.name);
    lines[1].push_back(layers::gate_name(model.config.gate));
    lines[2].push_back(fmt::format("{}", models::parameter_count(model.config)));
    lines[3].push_back(fmt::format("{}", model.pieces.size()));
  }
  for (const metrics::Figure* figure : metrics::figures_of(xray_metrics(), /*of_triggers=*/false)) {
    std::vector<std::string> line{std::string(figure->key)};
    for (const ModelXray& model : models)
      line.push_back(console::figure_text(model.evaluation.report.overall.find(*figure)));
    lines.push_back(std::move(line));
  }
  std::string out = console::text_table(lines);
  for (const ModelXray& model : models) out += maps_text(model, maps_of(model), style);
  return out;
}

}  // namespace headgate::xray
