// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "headgate/version.h"
#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "models/decoder/decoder.hpp"
#include "models/decoder/parameters.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/evaluate/mean.hpp"
#include "models/evaluate/reach.hpp"
#include "models/evaluate/sink_attention.hpp"
#include "models/io/file_error.hpp"
#include "models/layers/cross_entropy.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/tokenize/open.hpp"
#include "models/train/memory.hpp"
#include "tool/reports/page/page.hpp"
#include "tool/reports/xray/page_files.hpp"
#include "tool/reports/xray/saved_reports.hpp"
#include "tool/reports/xray/verdict.hpp"

namespace headgate::xray {

namespace {

using nlohmann::ordered_json;
using page::rounded;

constexpr metrics::Figure kValueOutputRank{
    .key = "value_output_rank",
    .meaning =
        "How many directions W_v W_o of a head has: the effective rank of its singular values, at most the head's "
        "features."};
constexpr metrics::Figure kWrittenRank{
    .key = "written_rank",
    .meaning =
        "How many directions a head's output has over the text, after W_o: the effective rank of what it writes to "
        "the residual stream."};
/// A per-head figure (named value) that the Collector computes, and the function that reads it from a HeadRecord.
struct CollectedFigure {
  const metrics::Figure* figure;
  std::optional<double> (*of)(const HeadRecord& head);
};
constexpr std::array kCollectedFigures{
    CollectedFigure{&kMeanDistance, [](const HeadRecord& head) { return std::optional(head.mean_distance); }},
    CollectedFigure{&kValueOutputRank, [](const HeadRecord& head) { return head.value_output_rank; }},
    CollectedFigure{&kWrittenRank, [](const HeadRecord& head) { return std::optional(head.written_rank); }},
};

/// Adds the figures of the Collector to the report: the value of each head, and means for each layer and for the model.
/// A mean covers the heads that have a value.
void add_collected(metrics::Report& report, const std::vector<LayerRecord>& layers) {
  for (const CollectedFigure& row : kCollectedFigures) {
    metrics::Mean model;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      metrics::Mean of_layer;
      for (std::size_t h = 0; h < layers[layer].heads.size(); ++h) {
        const std::optional<double> value = row.of(layers[layer].heads[h]);
        report.heads[layer][h].set(*row.figure, value);
        if (value) of_layer.add(*value);
      }
      report.layers[layer].set(*row.figure, of_layer.maybe());
      model.add(of_layer);
    }
    report.overall.set(*row.figure, model.maybe());
  }
}

/// Returns the metrics to compute for these models.
/// Omits metrics of the first token if any model's sliding window hides that token from later ones.
/// Omits the attention to sinks if no model has sink logits.
metrics::MetricList metrics_of(const std::vector<train::LoadedModel>& models, const Choices& choices) {
  const bool hidden = std::any_of(models.begin(), models.end(), [&](const train::LoadedModel& model) {
    return metrics::hides_first_token(model.config, std::min(choices.tokens, model.config.seq_len));
  });
  const bool sinks = std::any_of(models.begin(), models.end(), [](const train::LoadedModel& model) {
    return model.config.gate.sinks != layers::SinkKind::none;
  });
  metrics::MetricList out;
  for (const metrics::Metric* metric : xray_metrics()) {
    if (hidden && metric->layers == metrics::MetricLayers::first_token) continue;
    if (sinks || metric != &metrics::kSinkAttentionMetric) out.push_back(metric);
  }
  return out;
}

/// Converts the choices of an X-ray to those of an evaluation of the same sequence.
train::EvaluationChoices evaluation_choices(const Choices& choices, const metrics::MetricList& metrics) {
  train::EvaluationChoices out;
  out.data = choices.text;
  out.include = choices.include;
  out.held_out = choices.held_out;
  out.token_ids = choices.token_ids;
  out.tokens = choices.tokens;
  constexpr std::int64_t kLongestPiece = 64;  // bytes of text to read per token; real tokens are far shorter
  out.text_bytes = kLongestPiece * choices.tokens;
  out.longest_of_others = choices.tokens;
  out.same_text = true;
  out.batch = 1;
  out.part = choices.part;
  std::transform(metrics.begin(), metrics.end(), std::back_inserter(out.metrics),
                 [](const metrics::Metric* metric) { return std::string(metric->name); });
  return out;
}

/// Opens the model's tokenizer. Returns null if that fails and the input is token ids, which need no tokenizer.
std::unique_ptr<tokenize::Tokenizer> tokenizer_of(const train::LoadedModel& model, bool token_ids) {
  try {
    return model.reads_bytes ? tokenize::byte_tokenizer() : tokenize::open_tokenizer(model.tokenizer);
  } catch (const io::FileError&) {
    if (!token_ids) throw;
    return nullptr;
  }
}

/// Returns the text of each token. If the bytes of a character belong to several tokens, the last of these tokens gets
/// the whole character. Without a tokenizer, the text is the token's number.
std::vector<std::string> pieces_of(const train::LoadedModel& model, const std::vector<std::int32_t>& tokens,
                                   bool token_ids) {
  const auto number_of = [](std::int32_t token) { return fmt::format("{} ", token); };
  std::vector<std::string> out;
  out.reserve(tokens.size());
  const auto tokenizer = tokenizer_of(model, token_ids);
  if (tokenizer == nullptr) {
    std::transform(tokens.begin(), tokens.end(), std::back_inserter(out), number_of);
    return out;
  }
  tokenize::StreamDecoder decoder(*tokenizer);
  for (const std::int32_t token : tokens) {
    // The tokenizer has no text for a token outside its vocabulary, such as the BOS token of a byte-level model.
    const std::string unknown = token_ids ? number_of(token) : "";
    out.push_back(token < tokenizer->vocab() ? decoder.next(token) : unknown);
  }
  if (!out.empty()) out.back() += decoder.finish();
  return out;
}

/// Holds the tokens of the evaluated sequence and their targets. The target of a token is the token that follows.
/// cut(count) keeps only the first `count` tokens.
struct Sequence {
  explicit Sequence(const train::SequenceSource& source)
      : tokens(static_cast<std::size_t>(source.seq_len())), targets(tokens.size()) {
    source.held_out_sequence(tokens.data(), targets.data(), 0);
  }
  void cut(std::int64_t count) {
    tokens.resize(static_cast<std::size_t>(count));
    targets.resize(tokens.size());
  }

  std::vector<std::int32_t> tokens, targets;
};

/// Returns the decoder options for passing the sequence through each layer in parts of choices.part tokens.
models::PartOptions parts_of(const Choices& choices) { return {.tokens = choices.part, .stores_delta_inputs = true}; }

void collect(ModelXray& out, const train::LoadedModel& model, const Sequence& sequence, const Choices& choices) {
  const auto& [tokens, targets] = sequence;
  const auto T = static_cast<std::int64_t>(tokens.size());
  out.pieces = pieces_of(model, tokens, !choices.token_ids.empty());
  const auto decoder = models::make_decoder(model.config, {1, T}, models::Purpose::evaluate, choices.precision,
                                            choices.context, parts_of(choices));
  Collector collector(model.config, model.parameters.data(), T, decoder->part_shape().seq, choices.map_cells,
                      choices.context);
  out.losses.resize(tokens.size());
  decoder->loss(model.parameters.data(), tokens.data(), targets.data(), &collector, out.losses.data());
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == layers::kIgnoredTarget) out.losses[t] = std::numeric_limits<float>::quiet_NaN();
  }
  out.layers = collector.layers();
  out.largest_activation = collector.largest_activation();
  out.map_cells = std::min(T, choices.map_cells);
}

/// Returns the number of tokens of a pass with overrides.
std::int64_t override_tokens(const train::EvaluationInput& input, const Choices& choices) {
  return std::min(input.source->seq_len(), choices.override_tokens);
}

/// Describes the cost of a model's overrides in one line: the number of passes and of tokens.
std::string override_plan(const train::LoadedModel& model, const train::EvaluationInput& input,
                          const Choices& choices) {
  const std::string words = comma_separated(overrides_of(model.config), &OverrideRow::word);
  return fmt::format("{}: overrides of {} ({}) take {} passes over {} tokens", model.name, word_of(*choices.overrides),
                     words, planned_passes(model.config, *choices.overrides), override_tokens(input, choices));
}

train::MemoryPlan memory_plan(const train::LoadedModel& model, const train::EvaluationInput& input,
                              const train::EvaluationPlan& evaluation, const Choices& choices) {
  train::MemoryPlan plan = train::evaluation_memory(model.config, *input.source, evaluation, input.metrics);
  const std::int64_t T = input.source->seq_len(), part = models::part_shape({1, T}, parts_of(choices)).seq;
  plan.push_back({"attention maps", Collector::planned_bytes(model.config, T, part, choices.map_cells)});
  // Does not count the decoder of the override passes. It reuses the memory of the evaluation's decoder, which has been
  // freed and is at least as large.
  if (choices.overrides) plan.push_back({"overrides", override_bytes(model.config, override_tokens(input, choices))});
  return plan;
}

ModelXray xray_of(const train::LoadedModel& model, const train::EvaluationInput& input, const Choices& choices,
                  const std::function<void(double)>& progress) {
  const train::EvaluationPlan one{.batch = 1, .batches = 1, .part = choices.part, .precision = choices.precision};
  // The fraction of the progress bar that the evaluation gets. collect() gets the same, the overrides get the rest.
  const double pass = choices.overrides ? 0.05 : 0.5;
  return train::with_memory(memory_plan(model, input, one, choices), 0, [&] {
    ModelXray out;
    out.name = model.name;
    out.config = model.config;
    progress(0.0);
    {
      train::HeldOutEvaluator evaluator(model.config, *input.source, one, input.metrics, choices.context);
      out.evaluation = evaluator.evaluate(model.parameters.data());
    }
    progress(pass);
    Sequence sequence(*input.source);
    collect(out, model, sequence, choices);
    add_collected(out.evaluation.report, out.layers);
    progress(2.0 * pass);
    if (choices.overrides) {
      sequence.cut(override_tokens(input, choices));
      out.overrides = override_parts(out.evaluation.report, model.config, model.parameters.data(), sequence.tokens,
                                     sequence.targets, *choices.overrides, choices.context,
                                     [&](double done) { progress(2.0 * pass + (1.0 - 2.0 * pass) * done); });
    }
    return out;
  });
}

// --- JSON --------------------------------------------------------------------------------------------------------

ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

ordered_json figures_json(const std::vector<ModelXray>& models) {
  ordered_json out = ordered_json::array();
  for (const metrics::Figure* figure : figures_of(models)) out.push_back(page::figure_json(*figure));
  if (std::any_of(models.begin(), models.end(), [](const ModelXray& model) { return model.overrides.has_value(); })) {
    for (const OverrideRow& row : kOverrides) out.push_back(page::figure_json(row.figure));
  }
  return out;
}

ordered_json head_json(const HeadRecord& head) {
  ordered_json singular = ordered_json::array(), keys = ordered_json::array();
  for (const double value : head.value_output_singular_values) singular.push_back(rounded(value));
  for (const auto& [token, weight] : head.top_keys) keys.push_back({token, rounded(weight)});
  return {{"map", head.map},
          {"received", head.received},
          {"gate", head.gate ? ordered_json(*head.gate) : ordered_json()},
          {"gate_histogram", head.gate_histogram ? ordered_json(*head.gate_histogram) : ordered_json()},
          {"top_keys", keys},
          {"singular_values", singular}};
}

ordered_json overrides_json(const ModelXray& model) {
  if (!model.overrides) return {};
  ordered_json kinds = ordered_json::array();
  for (const OverrideRow& row : kOverrides) {
    const std::string reason = reason_left_out(model.config, row.value);
    kinds.push_back({{"word", row.word},
                     {"figure", row.figure.key},
                     {"writes", row.formula},
                     {"left_out", reason.empty() ? ordered_json() : ordered_json(reason)}});
  }
  const OverrideRun& run = *model.overrides;
  return {{"of", word_of(run.part)},
          {"tokens", run.tokens},
          {"passes", run.passes},
          {"loss", number(run.loss)},
          {"kinds", std::move(kinds)}};
}

/// Adds the evaluation's figures (named metric values) of the model, of its layers and of its heads to the JSON.
/// Their keys are "figures", "layer_figures" and "head_figures".
void add_figures(ordered_json& out, const ModelXray& model) {
  ordered_json evaluation = train::evaluation_json(model.evaluation, train::HeadFigures::included);
  ordered_json layers = ordered_json::array(), heads = ordered_json::array();
  for (ordered_json& figures : evaluation["layers"]) {
    heads.push_back(std::move(figures["heads"]));
    figures.erase("heads");
    layers.push_back(std::move(figures));
  }
  for (const char* key : {"layers", "tokens", "seq_len", "text_bytes"}) evaluation.erase(key);
  out["figures"] = std::move(evaluation);
  out["layer_figures"] = std::move(layers);
  out["head_figures"] = std::move(heads);
}

ordered_json layer_types_json(const models::DecoderConfig& config) {
  ordered_json out = ordered_json::array();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) out.push_back(word_of(type_of(config, layer)));
  return out;
}

ordered_json model_json(const ModelXray& model) {
  const models::DecoderConfig& c = model.config;
  ordered_json out = {
      {"name", model.name}, {"gate", layers::gate_name(c.gate)},  {"parameters", models::parameter_count(c)},
      {"layers", c.layers}, {"layer_types", layer_types_json(c)}, {"kv_heads", c.kv_heads},
      {"dim", c.dim},       {"tokens", model.pieces.size()},      {"verdict", verdict(model)}};
  const LargestActivation& largest = model.largest_activation;
  out["largest_activation"] = {{"value", number(largest.value)},
                               {"layer", largest.layer},
                               {"token", largest.token},
                               {"channel", largest.channel}};
  add_figures(out, model);
  out["overrides"] = overrides_json(model);
  out["text"] = model.pieces;
  ordered_json losses = ordered_json::array(), heads = ordered_json::array();
  for (const float loss : model.losses) losses.push_back(rounded(static_cast<double>(loss)));
  ordered_json gate = ordered_json::array(), received = ordered_json::array();
  bool any_gate = false;
  for (const LayerRecord& layer : model.layers) {
    ordered_json of_layer = ordered_json::array();
    for (const HeadRecord& head : layer.heads) of_layer.push_back(head_json(head));
    heads.push_back(std::move(of_layer));
    received.push_back(layer.received);
    gate.push_back(layer.gate ? ordered_json(*layer.gate) : ordered_json());
    any_gate = any_gate || layer.gate;
  }
  out["token_losses"] = std::move(losses);
  out["map_size"] = model.map_cells;
  out["heads"] = std::move(heads);
  out["layer_text"] = {{"gate", any_gate ? std::move(gate) : ordered_json()}, {"received", std::move(received)}};
  return out;
}

}  // namespace

metrics::MetricList xray_metrics() {
  metrics::MetricList out;
  for (const metrics::Metric* metric : metrics::that_apply(metrics::all_metrics(), /*has_triggers=*/false)) {
    const bool costs_logits = metric->inputs.has(metrics::Input::exit_loss);
    if (!costs_logits && metric != &metrics::kReachMetric) out.push_back(metric);
  }
  return out;
}

models::LayerType type_of(const models::DecoderConfig& config, std::int64_t layer) {
  const models::LayerConfig c = models::layer_config(config, layer);
  return c.window > 0 ? models::LayerType::sliding_attention : c.type;
}

std::vector<const metrics::Figure*> collected_figures() {
  std::vector<const metrics::Figure*> out;
  std::transform(kCollectedFigures.begin(), kCollectedFigures.end(), std::back_inserter(out),
                 [](const CollectedFigure& row) { return row.figure; });
  return out;
}

std::vector<const metrics::Figure*> figures_of(const std::vector<ModelXray>& models) {
  metrics::MetricList some;
  for (const metrics::Metric* metric : xray_metrics()) {
    const auto has = [&](const ModelXray& model) {
      const metrics::MetricList& own = model.evaluation.report.metrics;
      return std::find(own.begin(), own.end(), metric) != own.end();
    };
    if (std::any_of(models.begin(), models.end(), has)) some.push_back(metric);
  }
  std::vector<const metrics::Figure*> out = metrics::figures_of(some, /*of_triggers=*/false);
  const auto collected = collected_figures();
  out.insert(out.end(), collected.begin(), collected.end());
  return out;
}

std::vector<ModelXray> xray(const Choices& choices, const Listener& listener) {
  std::vector<train::LoadedModel> models;
  for (const std::string& path : choices.models) {
    listener.progress(path, 0.0);
    models.push_back(train::load_model(path));
  }
  return xray(models, choices, listener);
}

std::vector<ModelXray> xray(const std::vector<train::LoadedModel>& models, const Choices& choices,
                            const Listener& listener) {
  require(choices.map_cells >= 1 && choices.map_cells <= std::int64_t{kMostMapCells},
          "map_cells is {} but must be from 1 to {}", choices.map_cells, kMostMapCells);
  require(choices.tokens >= 1, "tokens is {} but must be at least 1", choices.tokens);
  require(choices.override_tokens >= 1, "override_tokens is {} but must be at least 1", choices.override_tokens);
  const auto wanted = evaluation_choices(choices, metrics_of(models, choices));
  const std::vector<train::EvaluationInput> inputs = train::evaluation_inputs(wanted, models);
  for (const train::EvaluationInput& input : inputs) {
    require(input.source->seq_len() > 1,
            "{}: an X-ray of one token shows nothing, as it attends to itself alone; give two and the one after them",
            input.source->name());
  }
  for (std::size_t i = 0; i < models.size() && choices.overrides; ++i) {
    listener.plan(override_plan(models[i], inputs[i], choices));
  }
  std::vector<ModelXray> out;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const auto of_all = [&](double done) {
      listener.progress(models[i].name, (static_cast<double>(i) + done) / static_cast<double>(models.size()));
    };
    out.push_back(xray_of(models[i], inputs[i], choices, of_all));
  }
  return out;
}

ordered_json report_json(const std::vector<ModelXray>& models, const std::vector<std::string>& text) {
  ordered_json out = {
      {"headgate", HEADGATE_VERSION}, {"version", kReportVersion}, {"text", fmt::format("{}", fmt::join(text, ", "))}};
  out["figures"] = figures_json(models);
  ordered_json list = ordered_json::array();
  for (const ModelXray& model : models) list.push_back(model_json(model));
  out["models"] = std::move(list);
  return out;
}

std::string report_page(const ordered_json& report) {
  return page::page_of({.body = kPageHtml, .css = kPageCss, .js = kPageJs}, report);
}

}  // namespace headgate::xray
