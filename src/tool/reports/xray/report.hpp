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
  std::vector<std::string> text;           ///< paths of text files and directories
  std::vector<std::string> include{};      ///< selects the files of directories, as EvaluationChoices::include does
  bool held_out = false;                   ///< uses only the end of the text, which training holds out for evaluation
  std::string token_ids{};                 ///< path of a .npy file of token ids, used in place of `text`
  std::int64_t tokens = 2048;              ///< maximum length of the sequence, taken from the beginning of the text
  std::int64_t part = train::kPartTokens;  ///< maximum number of tokens that pass through a layer at a time
  std::int64_t map_cells = 96;             ///< maximum number of cells per side of a head's map
  std::optional<OverriddenPart> overrides{};
  std::int64_t override_tokens = 256;                              ///< maximum number of tokens in override passes
  models::ModelPrecision precision = models::ModelPrecision::f32;  ///< precision; override passes always use f32
  ExecutionContext context{};
};

/// The results of the X-ray of one model.
struct ModelXray {
  std::string name;
  models::DecoderConfig config;
  train::Evaluation evaluation;     ///< values of xray_metrics(), collected_figures() and the overrides
  std::int64_t map_cells = 0;       ///< M, the number of cells per side of each head's map
  std::vector<std::string> pieces;  ///< (T) token texts, possibly invalid UTF-8; token ids without a tokenizer
  std::vector<float> losses;        ///< (T) −log p of the next token, in nats; NaN for ignored targets
  std::vector<LayerRecord> layers;
  LargestActivation largest_activation;
  std::optional<OverrideRun> overrides;  ///< how the overrides were run; the changes of the loss are in `evaluation`
};

/// Returns the metrics of an X-ray. These are all metrics except
/// - those that need trigger tokens (tokens after which the model must copy),
/// - `layer_loss`, which takes several times as long as all others together,
/// - `reach`, which the figure mean_distance replaces.
metrics::MetricList xray_metrics();

/// The mean distance between a query and its keys in tokens, weighted by attention: HeadRecord::mean_distance.
inline constexpr metrics::Figure kMeanDistance{
    .key = "mean_distance",
    .meaning =
        "How many tokens back queries look on average, by their weights: attention layers by those of the "
        "softmax, layers of linear attention by the magnitudes of the weights hidden in their state."};

/// Returns the per-head figures that the Collector computes.
/// These figures cannot be metrics: they need all attention weights, weight matrices, or a head's output for the whole
/// text.
std::vector<const metrics::Figure*> collected_figures();

/// Returns the type of a layer. An attention layer with a sliding window has the type sliding_attention.
/// The window may be the layer's own or the whole model's.
models::LayerType type_of(const models::DecoderConfig& config, std::int64_t layer);

/// Returns the figures of all metrics that were computed for at least one model, followed by collected_figures().
/// Leaves out the figures of overrides.
std::vector<const metrics::Figure*> figures_of(const std::vector<ModelXray>& models);

/// Functions that xray() calls:
/// - progress(model, fraction): called repeatedly while xray() works on a model
/// - plan(line): called once for each model before all work, if overrides are requested; `line` states their cost
struct Listener {
  std::function<void(const std::string& model, double fraction)> progress;
  std::function<void(const std::string& line)> plan;
};

/// Loads the models choices.models and computes the X-ray of each.
/// Throws Error and io::FileError like evaluation_inputs().
std::vector<ModelXray> xray(const Choices& choices, const Listener& listener);

/// Computes the X-ray of each loaded model and ignores choices.models. Throws the same errors as the other overload.
std::vector<ModelXray> xray(const std::vector<train::LoadedModel>& models, const Choices& choices,
                            const Listener& listener);

/// Returns the report as JSON, in the format that docs/reference/xray.md describes.
nlohmann::ordered_json report_json(const std::vector<ModelXray>& models, const std::vector<std::string>& text);

/// Returns an HTML page that contains the report and displays it without network access.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace headgate::xray
