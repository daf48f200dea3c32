// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "library/core/rows.hpp"
#include "models/families/model_file.hpp"
#include "models/io/input_file.hpp"
#include "tool/cli/enum_option.hpp"
#include "tool/cli/eval_text.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/model_arguments.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/precision_option.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/train_options.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/progress.hpp"
#include "tool/console/terminal_text.hpp"
#include "tool/reports/xray/report.hpp"
#include "tool/reports/xray/saved_reports.hpp"
#include "tool/reports/xray/terminal.hpp"

namespace headgate::cli {
namespace {

struct XrayOptions {
  xray::Choices choices;
  std::optional<std::int64_t> map_cells;
  std::vector<std::string> from;
  std::string out;
  JsonOutput json;
  bool list = false;
};

std::string override_help() {
  return fmt::format(
      "Measure what each head, or all heads of each layer, is worth: how much the loss rises if the gate is fixed ({}) "
      "for all tokens; a value head of linear attention is closed or has its mean output gate. Each takes a pass of "
      "the model (docs/reference/xray.md)",
      list_words<xray::Override>());
}

xray::MapStyle map_style() {
  return console::takes_colours(STDOUT_FILENO) ? xray::MapStyle::colours : xray::MapStyle::shades;
}

/// Combines X-ray reports that were saved as JSON into one HTML page.
int run_from(const XrayOptions& o) {
  check_outputs({{"--out", o.out}, {"--json-out", o.json.file}}, [&](InputFiles& inputs) {
    for (const std::string& path : o.from) inputs.add_file("--from", path);
  });
  std::vector<nlohmann::ordered_json> reports;
  reports.reserve(o.from.size());
  for (const std::string& path : o.from) {
    reports.push_back(xray::parse_report(path, io::read_stream(path, xray::kMostReport_bytes)));
  }
  const nlohmann::ordered_json report = xray::joined_reports(reports);
  if (!o.out.empty()) write_output("xray", o.out, xray::report_page(report));
  o.json.write("xray", json_line(report));
  if (!o.json.print && (!o.out.empty() || !o.json.wanted())) fmt::print("{}", xray::verdicts_text(report));
  return kSuccess;
}

int run_xray(const XrayOptions& o) {
  if (o.list) {
    o.json.write("xray", json_text(xray::list_json()));
    if (!o.json.wanted()) fmt::print("{}", xray::list_text());
    return kSuccess;
  }
  if (!o.from.empty()) return run_from(o);
  if (o.choices.models.empty()) throw UsageError("MODEL is required");
  refuse_texts(o.choices.models);
  const std::string& token_ids = o.choices.token_ids;
  check_text_options(o.choices.text, token_ids);
  check_include("--text", o.choices.text, o.choices.include);
  if (o.map_cells && o.out.empty() && !o.json.wanted()) {
    throw UsageError("--map needs --out, --json or --json-out: what is printed has no such maps");
  }
  check_outputs({{"--out", o.out}, {"--json-out", o.json.file}}, [&](InputFiles& inputs) {
    inputs.add_models("MODEL", o.choices.models);
    inputs.add_text("--text", o.choices.text, {.include = o.choices.include, .run = {}});
    inputs.add_file("--token-ids", token_ids);
  });
  xray::Choices choices = o.choices;
  choices.map_cells = o.map_cells.value_or(choices.map_cells);
  console::ProgressBar bar;
  const auto models =
      xray::xray(choices, {.progress = [&](const std::string& model, double done) { bar.show(done, {.path = model}); },
                           .plan =
                               [&](const std::string& line) {
                                 bar.clear();
                                 console::note(fmt::format("headgate xray: {}\n", console::terminal_text(line)));
                               }});
  bar.clear();
  const nlohmann::ordered_json report =
      xray::report_json(models, token_ids.empty() ? o.choices.text : std::vector<std::string>{token_ids});
  if (!o.out.empty()) write_output("xray", o.out, xray::report_page(report));
  o.json.write("xray", json_line(report));
  if (o.out.empty() && !o.json.wanted()) fmt::print("{}", xray::headline_text(models, map_style()));
  if (!o.out.empty() && !o.json.print) fmt::print("{}", xray::verdicts_text(models));
  int status = kSuccess;
  for (const xray::ModelXray& model : models) {
    if (!check_finite("xray", model.name, model.evaluation)) status = kCheckFailed;
  }
  return status;
}

}  // namespace

Verb add_xray(CommandLine& line) {
  auto o = std::make_shared<XrayOptions>();
  VerbOptions verb = line.add_verb(
      "xray",
      "A page that shows what each head of a model does on a text\n\n"
      "Attention maps, gates, sinks, massive activations and ranks, head by head and token by token, of one model or "
      "several side by side. Layers of linear attention have their decay, output gate, state and hidden weights. MODEL "
      "is a directory made by `headgate train`, a directory of Hugging Face's, or a GGUF "
      "file. Without --json, what the figures say is printed; without --out and --json-out too, the main figures "
      "follow, "
      "with small maps of layers and heads.");
  verb.arguments("MODEL", o->choices.models, std::string(kModelHelp) + "; several are compared side by side")
      .optional();
  verb.values("--text", o->choices.text, "PATH", "UTF-8 text: a file, or a directory with all files below it");
  const Option ids =
      verb.value("--token-ids", o->choices.token_ids, "FILE.npy",
                 "Token ids, i32 or i64, in place of text: for models whose tokenizer is not there or not supported");
  declare_include(verb, o->choices.include).excludes(ids);
  Option from = verb.lists(
      "--from", o->from, "FILE.json",
      "Put reports of --json-out on one page, in place of MODEL and text; of several files all models are shown "
      "side by side");
  verb.value("--tokens", o->choices.tokens, "N",
             "The first N tokens of the text, at most, as one sequence; no more than the model has positions for "
             "(default 2048)")
      .range(2, 1 << 16);
  verb.value(
          "--part", o->choices.part, "N",
          "Tokens that pass through a layer at once, at most, of a longer text (default 2048): memory for activations "
          "does not grow beyond")
      .range(1, 1 << 20);
  declare_precision(verb, o->choices.precision, "products of matrices, logits too, and attention",
                    "Norms, softmax, the residual stream, the loss, experts and the passes of --override stay f32 "
                    "(docs/reference/numerics.md)");
  verb.value("--out", o->out, "FILE.html", "Write the page: one file that needs no network");
  declare_json(verb, o->json, "what the page shows (docs/reference/xray.md)");
  verb.value("--map", o->map_cells, "N",
             "Cells of a side of a head's map, at most (default 96); a cell of a longer text is a mean")
      .range<std::int64_t>(1, xray::kMostMapCells);
  const Option overrides = declare_enum<xray::OverriddenPart>(verb, "--override", o->choices.overrides,
                                                              list_words<xray::OverriddenPart>("|"), override_help());
  verb.value("--override-tokens", o->choices.override_tokens, "N",
             "The first N tokens of the text, at most, for --override (default 256)")
      .range(2, 1 << 16)
      .needs(overrides);
  Option list =
      verb.flag("--list", o->list,
                "Print the figures and their definitions, and exit; with --json as a list of objects with name, of and "
                "definition");
  declare_threads(verb, o->choices.context.threads, "Threads (default: all cores)");
  for (const char* other : {"MODEL", "--text", "--token-ids", "--include", "--tokens", "--part", "--precision", "--map",
                            "--override", "--override-tokens"}) {
    from.excludes(verb.declared(other));
    list.excludes(verb.declared(other));
  }
  list.excludes(from).excludes(verb.declared("--out"));
  verb.footer(
      "Examples:\n"
      "  headgate xray run --text book.txt\n"
      "  headgate xray run-plain run-gated --text book.txt --out report.html\n"
      "  headgate xray SmolLM2.gguf --text book.txt --tokens 512 --json-out report.json\n"
      "  headgate xray --from before.json after.json --out both.html");
  return {"xray", [o] { return run_xray(*o); }, /*runs_models=*/true};
}

}  // namespace headgate::cli
