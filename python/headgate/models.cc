// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "library/core/format.hpp"
#include "library/core/rows.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/io/file_error.hpp"
#include "models/io/missing_file.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/train/evaluation_choices.hpp"
#include "models/train/memory.hpp"
#include "python/headgate/keywords.hpp"
#include "python/headgate/signals.hpp"
#include "tool/explain/problem.hpp"
#include "tool/explain/solution.hpp"
#include "tool/explain/text.hpp"
#include "tool/reports/compare/report.hpp"
#include "tool/reports/xray/report.hpp"
#include "tool/reports/xray/saved_reports.hpp"

// Binds the command line's functions for models, which headgate/models.py calls. This extension module is separate from
// that of attention because it needs more libraries. Each report is the JSON text that the command line prints.

namespace headgate::python {
namespace {

namespace nb = nanobind;

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Holds one loaded model, as a list of one: the functions of train/ take lists of models.
struct Model {
  std::vector<train::LoadedModel> list;

  const train::LoadedModel& model() const { return list.front(); }
};

Model load(const Keywords& keywords) {
  const auto path = keywords.require<std::string>("path");
  const nb::gil_scoped_release released;
  Model loaded;
  loaded.list.push_back(train::load_model(path));
  return loaded;
}

std::string facts(const Model& self) {
  const train::LoadedModel& m = self.model();
  return text_of({{"name", m.name},
                  {"gate", layers::gate_name(m.config.gate)},
                  {"parameters", models::parameter_count(m.config)},
                  {"layers", m.config.layers},
                  {"heads", m.config.heads},
                  {"kv_heads", m.config.kv_heads},
                  {"dim", m.config.dim},
                  {"vocab", m.config.vocab},
                  {"reads_bytes", m.reads_bytes}});
}

/// Returns the argument `model`, an object of class Model.
const Model& take_model(const Keywords& keywords) { return nb::cast<const Model&>(keywords.take("model")); }

std::optional<std::int64_t> take_number(const Keywords& keywords, const char* name) {
  if (keywords.take(name).is_none()) return std::nullopt;
  return keywords.require<std::int64_t>(name);
}

/// Returns the argument `tokens`: a number, kAllTokens for "all", or nullopt for None.
std::optional<std::int64_t> take_tokens(const Keywords& keywords) {
  std::string word;
  if (nb::try_cast(keywords.take("tokens"), word) && word == "all") return train::kAllTokens;
  return take_number(keywords, "tokens");
}

/// Returns the argument `cache_dtype`, or DType::none if it is None.
DType take_cache_dtype(const Keywords& keywords) {
  if (keywords.take("cache_dtype").is_none()) return DType::none;
  const auto word = keywords.require<std::string>("cache_dtype");
  headgate::require(word == dtype_name(DType::i8), "cache_dtype: '{}' is none of i8", word);
  return DType::i8;
}

/// Returns a copy of a model without its parameters.
train::LoadedModel without_parameters(const train::LoadedModel& model) {
  return {model.name, model.config, {}, model.trained, model.reads_bytes, model.bos, model.tokenizer};
}

/// Returns the report of `headgate eval --json`.
std::string evaluate(const Keywords& keywords) {
  const Model& self = take_model(keywords);
  train::EvaluationChoices choices;
  choices.data = keywords.require<std::vector<std::string>>("text");
  choices.metrics = keywords.require<std::vector<std::string>>("metrics");
  choices.tokens = take_tokens(keywords);
  headgate::require(choices.tokens.value_or(1) >= 1, "tokens is {} but must be at least 1", choices.tokens.value_or(1));
  choices.seq_len = take_number(keywords, "seq_len");
  choices.cache = take_cache_dtype(keywords);
  choices.cache_first = take_number(keywords, "cache_first").value_or(0);
  headgate::require(choices.cache_first >= 0, "cache_first is {} but must be at least 0", choices.cache_first);
  headgate::require(choices.cache_first == 0 || choices.cache == DType::i8,
                    "cache_first is {} but cache_dtype is None: only i8 rounds keys and values", choices.cache_first);
  choices.activations = keywords.require<std::vector<std::string>>("activations");
  const nb::object against = keywords.take("against");
  choices.against = !against.is_none();
  const train::LoadedModel& model = self.model();
  const train::LoadedModel* const reference = choices.against ? &nb::cast<const Model&>(against).model() : nullptr;
  const auto heads = keywords.require<bool>("heads");
  ExecutionContext context{.threads = take_threads(keywords)};
  return interruptible(keywords, context, [&] {
    std::vector<train::LoadedModel> models{without_parameters(model)};
    if (reference != nullptr) models.push_back(without_parameters(*reference));
    const train::EvaluationInput input = train::evaluation_inputs(choices, models).front();
    const auto plan = train::evaluation_memory(model.config, *input.source, input.plan, input.metrics,
                                               reference == nullptr ? nullptr : &reference->config);
    return train::with_memory(plan, 0, [&] {
      train::HeldOutEvaluator evaluator(model.config, *input.source, input.plan, input.metrics, context);
      train::Evaluation evaluation = evaluator.evaluate(model.parameters.data());
      evaluation.comparisons = train::comparisons_of(evaluator, model, reference);
      const bool has_heads = heads && !metrics::of_heads(input.metrics).empty();
      return text_of(
          train::evaluation_json(evaluation, has_heads ? train::HeadFigures::included : train::HeadFigures::left_out));
    });
  });
}

/// Returns the report of `headgate xray --json`.
std::string xray_of(const Keywords& keywords) {
  const Model& self = take_model(keywords);
  xray::Choices choices;
  choices.text = keywords.require<std::vector<std::string>>("text");
  choices.tokens = keywords.require<std::int64_t>("tokens");
  choices.map_cells = keywords.require<std::int64_t>("map_cells");
  const auto overrides = keywords.take("override", std::string());
  if (!overrides.empty()) choices.overrides = parse_option_word<xray::OverriddenPart>("override", overrides);
  choices.override_tokens = keywords.require<std::int64_t>("override_tokens");
  choices.context.threads = take_threads(keywords);
  const xray::Listener listener{.progress = [](const std::string&, double) {}, .plan = [](const std::string&) {}};
  return interruptible(keywords, choices.context, [&] {
    return text_of(xray::report_json(xray::xray(self.list, choices, listener), choices.text));
  });
}

/// Returns the HTML page of several reports. The reports are JSON texts.
std::string page_of(const Keywords& keywords) {
  const auto texts = keywords.require<std::vector<std::string>>("reports");
  const nb::gil_scoped_release released;
  std::vector<nlohmann::ordered_json> reports;
  reports.reserve(texts.size());
  for (const std::string& text : texts) {
    reports.push_back(xray::parse_report(formatted("reports[{}]", reports.size()), text));
  }
  return xray::report_page(xray::joined_reports(reports));
}

/// Returns the report of `headgate explain --json` for a problem file. Numbers are not rounded.
std::string explain_file(const Keywords& keywords) {
  const auto path = keywords.require<std::string>("path");
  return explain::json_text(explain::solve(explain::read_worked_problem(path)), std::nullopt);
}

/// Reads metrics.jsonl of each directory. Returns the runs as a JSON array.
std::string runs_of(const Keywords& keywords) {
  const auto directories = keywords.require<std::vector<std::string>>("directories");
  const nb::gil_scoped_release released;
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const compare::ComparedRun& run : compare::read_runs(directories)) {
    const train::RecordedRun& recorded = run.recorded;
    nlohmann::ordered_json curves;
    for (const train::Curve& curve : recorded.curves) {
      curves[std::string(curve.figure->key)] = {{"steps", curve.steps}, {"values", curve.values}};
    }
    runs.push_back({{"name", run.name},
                    {"steps", recorded.steps},
                    {"tokens", recorded.tokens ? nlohmann::ordered_json(*recorded.tokens) : nullptr},
                    {"spikes", recorded.spikes},
                    {"curves", curves}});
  }
  return text_of(runs);
}

}  // namespace
}  // namespace headgate::python

NB_MODULE(_models, module) {
  namespace python = headgate::python;
  namespace nb = nanobind;
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const headgate::io::MissingFile& error) {
      PyErr_SetString(PyExc_FileNotFoundError, error.what());
    } catch (const headgate::io::FileError& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
  nb::class_<python::Model>(module, "Model").def("facts", python::facts);
  // models.py declares the signatures and defaults. Error messages contain the argument names below.
  const auto add = [&module](const char* name, auto function, const std::vector<const char*>& arguments) {
    std::vector<python::ArgumentText> texts;
    texts.reserve(arguments.size());
    for (const char* argument : arguments) texts.push_back({argument, "object", "", ""});
    python::define(module, name, function, texts, texts.size(), "object", "See headgate/models.py.");
  };
  add("load", python::load, {"path"});
  add("eval", python::evaluate,
      {"model", "text", "metrics", "tokens", "seq_len", "heads", "cache_dtype", "cache_first", "activations", "against",
       "threads"});
  add("xray", python::xray_of, {"model", "text", "tokens", "map_cells", "override", "override_tokens", "threads"});
  add("page", python::page_of, {"reports"});
  add("explain", python::explain_file, {"path"});
  add("runs", python::runs_of, {"directories"});
}
