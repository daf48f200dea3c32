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
  std::vector<std::string> text;           ///< files and directories
  std::vector<std::string> include{};      ///< files of directories to read, as EvaluationChoices::include
  bool held_out = false;                   ///< the text begins where training holds it out
  std::string token_ids{};                 ///< a .npy file in place of `text`
  std::int64_t tokens = 2048;              ///< most tokens, from the beginning of the text: one sequence
  std::int64_t part = train::kPartTokens;  ///< most tokens that pass through a layer at a time
  std::int64_t map_cells = 96;             ///< most cells a side of a head's map
  std::optional<OverriddenPart> overrides{};
  std::int64_t override_tokens = 256;                              ///< most tokens, from the beginning of the text
  models::ModelPrecision precision = models::ModelPrecision::f32;  ///< of all but overrides
  ExecutionContext context{};
};

/// Holds the X-ray of a model on the first tokens of the text.
struct ModelXray {
  std::string name;
  models::DecoderConfig config;
  train::Evaluation evaluation;     ///< values of xray_metrics and of collected_figures
  std::int64_t map_cells = 0;       ///< cells a side of its heads' maps
  std::vector<std::string> pieces;  ///< (T) what each token adds to the text, which may not be valid UTF-8; the
                                    ///< number of a token whose text is unknown
  std::vector<float> losses;        ///< (T) −log p of the token that follows, in nats; NaN for ignored targets
  std::vector<LayerRecord> layers;
  LargestActivation largest_activation;
  std::optional<OverrideRun> overrides;  ///< its figures are in the evaluation's report
};

/// Returns the metrics that an X-ray has: those of tasks without triggers, except layer_loss, which costs several times
/// as much as all others, and reach, which mean_distance is of all layers.
metrics::MetricList xray_metrics();

/// How far a layer looks: HeadRecord::mean_distance.
inline constexpr metrics::Figure kMeanDistance{
    .key = "mean_distance",
    .meaning =
        "How many tokens back queries look on average, by their weights: attention layers by those of the "
        "softmax, layers of linear attention by the magnitudes of the weights hidden in their state."};

/// Returns the figures of heads that no metric gives, because they need the weights of all pairs of tokens, matrices of
/// the model, or all that a head writes.
std::vector<const metrics::Figure*> collected_figures();

/// Returns the type of a layer; sliding_attention if every layer has the model's window.
models::LayerType type_of(const models::DecoderConfig& config, std::int64_t layer);

/// Returns the figures that some of the models have, without those of overrides: of metrics, then collected ones.
std::vector<const metrics::Figure*> figures_of(const std::vector<ModelXray>& models);

/// Callbacks of a run. progress receives the current model and the fraction done. plan receives, before the first model
/// runs, a line for each model on the cost of its overrides.
struct Listener {
  std::function<void(const std::string& model, double fraction)> progress;
  std::function<void(const std::string& line)> plan;
};

/// Runs each model on the text. Throws Error and io::FileError as evaluation_inputs does.
std::vector<ModelXray> xray(const Choices& choices, const Listener& listener);

/// Does the same for loaded models; ignores choices.models.
std::vector<ModelXray> xray(std::vector<train::LoadedModel> models, const Choices& choices, const Listener& listener);

/// Returns the whole report, as docs/reference/xray.md describes it.
nlohmann::ordered_json report_json(const std::vector<ModelXray>& models, const std::vector<std::string>& text);

/// Returns one page that holds the report and shows it in a browser without a network.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace headgate::xray
