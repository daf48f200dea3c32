// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/decoder/model_precision.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/train/evaluation_choices.hpp"
#include "tool/reports/xray/collector.hpp"
#include "tool/reports/xray/overrides.hpp"

namespace headgate::xray {

struct Choices {
  std::vector<std::string> models;
  std::vector<std::string> text;       ///< paths of text files and directories
  std::vector<std::string> include{};  ///< patterns that select files in directories, as in EvaluationChoices::include
  bool held_out = false;               ///< uses only the tail of the text that training holds out
  std::string token_ids{};             ///< path of a .npy file of token ids, in place of `text`
  std::int64_t tokens = 2048;          ///< maximum number of tokens, from the beginning of the text, as one sequence
  std::int64_t part = train::kPartTokens;  ///< maximum number of tokens that pass through a layer at a time
  std::int64_t map_cells = 96;             ///< maximum number of cells per side of a head's map
  std::optional<OverriddenPart> overrides{};
  std::int64_t override_tokens = 256;                              ///< maximum number of tokens for overrides
  models::ModelPrecision precision = models::ModelPrecision::f32;  ///< precision of all passes except overrides
  ExecutionContext context{};
};

/// Holds the X-ray of a model on the first tokens of the text.
struct ModelXray {
  std::string name;
  models::DecoderConfig config;
  train::Evaluation evaluation;     ///< values of the figures of xray_metrics() and collected_figures()
  std::int64_t map_cells = 0;       ///< cells per side of the heads' maps
  std::vector<std::string> pieces;  ///< (T) text of each token, not always valid UTF-8; its number if unknown
  std::vector<float> losses;        ///< (T) −log p of the token that follows, in nats; NaN for ignored targets
  std::vector<LayerRecord> layers;
  LargestActivation largest_activation;
  std::optional<OverrideRun> overrides;  ///< the figures of the overrides are in `evaluation`
};

/// Returns the metrics of an X-ray: all metrics for tasks without triggers, except two. layer_loss costs several times
/// as much as all others, and `reach` is covered by the figure mean_distance.
metrics::MetricList xray_metrics();

/// The figure of HeadRecord::mean_distance: the mean distance in tokens between a query and its keys, weighted by
/// attention.
inline constexpr metrics::Figure kMeanDistance{
    .key = "mean_distance",
    .meaning =
        "How many tokens back queries look on average, by their weights: attention layers by those of the "
        "softmax, layers of linear attention by the magnitudes of the weights hidden in their state."};

/// Returns the figures of heads that the Collector computes. No metric can compute them, because they need all
/// attention weights, matrices of the model, or a head's output for the whole text.
std::vector<const metrics::Figure*> collected_figures();

/// Returns the type of a layer; sliding_attention if the layer has a window, including a window for the whole model.
models::LayerType type_of(const models::DecoderConfig& config, std::int64_t layer);

/// Returns the figures that at least one model has, except figures of overrides. Figures of metrics come first, then
/// collected_figures().
std::vector<const metrics::Figure*> figures_of(const std::vector<ModelXray>& models);

/// Callbacks of an X-ray. progress receives the current model and the fraction done. plan receives, before the first
/// model runs, a line for each model on the cost of its overrides.
struct Listener {
  std::function<void(const std::string& model, double fraction)> progress;
  std::function<void(const std::string& line)> plan;
};

/// Runs each model on the text. Throws Error and io::FileError as evaluation_inputs does.
std::vector<ModelXray> xray(const Choices& choices, const Listener& listener);

/// Runs each loaded model on the text; ignores choices.models. Throws the same errors.
std::vector<ModelXray> xray(std::vector<train::LoadedModel> models, const Choices& choices, const Listener& listener);

/// Returns the report in the format of docs/reference/xray.md.
nlohmann::ordered_json report_json(const std::vector<ModelXray>& models, const std::vector<std::string>& text);

/// Returns an HTML page that contains the report and displays it without a network.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace headgate::xray
