// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "compare/report.hpp"
#include "core/rows.hpp"
#include "explain/problem.hpp"
#include "explain/solution.hpp"
#include "explain/text.hpp"
#include "io/file_error.hpp"
#include "layers/gate_variant.hpp"
#include "metrics/registry.hpp"
#include "train/evaluation.hpp"
#include "train/evaluation_choices.hpp"
#include "train/memory.hpp"
#include "xray/report.hpp"

// What `headgate` does with models, for headgate/models.py: a module of its own, since it needs more libraries. Reports
// are JSON texts, those of the command line.

namespace headgate::python {
namespace {

namespace nb = nanobind;

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// A model that was read, as the functions of train/ take it: a list of one.
struct Model {
  std::vector<train::LoadedModel> list;

  const train::LoadedModel& model() const { return list.front(); }
};

Model load(const std::string& path) {
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

/// headgate eval --json.
std::string evaluate(const Model& self, const std::vector<std::string>& data, const std::vector<std::string>& metrics,
                     std::optional<std::int64_t> tokens, std::optional<std::int64_t> seq_len, bool heads, int threads) {
  const nb::gil_scoped_release released;
  train::EvaluationChoices choices;
  choices.data = data;
  choices.metrics = metrics;
  choices.tokens = tokens;
  choices.seq_len = seq_len;
  const train::EvaluationInput input = train::evaluation_inputs(choices, self.list).front();
  const train::LoadedModel& model = self.model();
  const auto plan = train::evaluation_memory(model.config, *input.source, input.plan, input.metrics);
  return train::with_memory(plan, 0, [&] {
    train::HeldOutEvaluator evaluator(model.config, *input.source, input.plan, input.metrics,
                                      ExecutionContext{.threads = threads});
    const train::Evaluation evaluation = evaluator.evaluate(model.parameters.data());
    const bool has_heads = heads && !metrics::of_heads(input.metrics).empty();
    return text_of(
        train::evaluation_json(evaluation, has_heads ? train::HeadFigures::included : train::HeadFigures::left_out));
  });
}

/// headgate xray --json.
std::string xray_of(const Model& self, const std::vector<std::string>& text, std::int64_t tokens,
                    std::int64_t map_cells, const std::optional<std::string>& overrides, std::int64_t override_tokens,
                    int threads) {
  const nb::gil_scoped_release released;
  xray::Choices choices;
  choices.text = text;
  choices.tokens = tokens;
  choices.map_cells = map_cells;
  if (overrides) choices.overrides = parse_option_word<xray::OverriddenPart>("override", *overrides);
  choices.override_tokens = override_tokens;
  choices.context.threads = threads;
  const xray::Listener listener{.progress = [](const std::string&, double) {}, .plan = [](const std::string&) {}};
  return text_of(xray::report_json(xray::xray(self.list, choices, listener), text));
}

/// headgate explain --json, of a problem's file, with as many digits as a double holds.
std::string explain_file(const std::string& path) {
  constexpr int kDigits = 17;
  return explain::json_text(explain::solve(explain::read_worked_problem(path)), kDigits);
}

/// What metrics.jsonl of each directory says.
std::string runs_of(const std::vector<std::string>& directories) {
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
    } catch (const headgate::io::FileError& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
  nb::class_<python::Model>(module, "Model").def("facts", python::facts);
  module.def("load", python::load, nb::arg("path"));
  module.def("evaluate", python::evaluate, nb::arg("model"), nb::arg("data"), nb::arg("metrics"),
             nb::arg("tokens").none(), nb::arg("seq_len").none(), nb::arg("heads"), nb::arg("threads"));
  module.def("xray", python::xray_of, nb::arg("model"), nb::arg("text"), nb::arg("tokens"), nb::arg("map_cells"),
             nb::arg("overrides").none(), nb::arg("override_tokens"), nb::arg("threads"));
  module.def("explain", python::explain_file, nb::arg("path"));
  module.def("runs", python::runs_of, nb::arg("directories"));
}
