// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/real_model.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "library/core/check.hpp"
#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_attention_uniform.hpp"
#include "models/evaluate/massive_activation.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "models/io/staged_file.hpp"
#include "models/io/units.hpp"
#include "tool/console/progress.hpp"
#include "tool/console/table.hpp"
#include "tool/demo/spread.hpp"
#include "tool/reports/xray/report.hpp"
#include "tool/reports/xray/terminal.hpp"

namespace headgate::demo {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr const char* kRealModelPage = "/real-model.html";
constexpr const char* kTrainedModelsPage = "/trained-models.html";

xray::Choices choices_of(const XrayRequest& wanted) {
  xray::Choices choices;
  choices.text = {wanted.text};
  choices.include = wanted.include;
  choices.tokens = kTokens;
  choices.context.threads = wanted.threads;
  return choices;
}

/// Writes the page of these models, which names the text `text`.
void write_page(const std::vector<xray::ModelXray>& models, const XrayRequest& wanted, const std::string& name,
                const std::string& text) {
  if (wanted.directory.empty()) return;
  const std::string path = wanted.directory + name;
  io::write_text(path, xray::report_page(xray::report_json(models, {text})));
  fmt::print("     head by head and token by token, in a browser: {}\n", path);
}

std::vector<xray::ModelXray> xray_of(std::vector<train::LoadedModel> models, const xray::Choices& choices) {
  console::ProgressBar bar;
  auto out = xray::xray(
      std::move(models), choices,
      {.progress = [&bar](const std::string& model, double done) { bar.show(done, {.path = model}); }, .plan = {}});
  bar.clear();
  return out;
}

/// Explains why the figures are close to those of the comparison but not equal.
std::string held_out_sentence(std::int64_t bytes, std::int64_t bytes_above) {
  return fmt::format(
      "These are the first {} bytes of the held-out text; the figures above are means over {} held-out bytes.", bytes,
      bytes_above);
}

double mean_written_rank(const xray::ModelXray& model) {
  double sum = 0.0, heads = 0.0;
  for (const xray::LayerRecord& layer : model.layers) {
    for (const xray::HeadRecord& head : layer.heads) sum += head.written_rank;
    heads += static_cast<double>(layer.heads.size());
  }
  return sum / heads;
}

}  // namespace

std::vector<std::string> page_paths(const std::string& directory) {
  if (directory.empty()) return {};
  return {directory + kRealModelPage, directory + kTrainedModelsPage};
}

void prepare_pages(const XrayRequest& wanted) {
  if (wanted.directory.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(wanted.directory, error);
  require(!error, "--out {}: cannot make this directory: {}", wanted.directory, error.message());
  for (const std::string& page : page_paths(wanted.directory)) io::check_writable(page);
}

std::string sink_verdict(const std::string& name, const metrics::FigureRow& figures) {
  const double first = figures.at(metrics::kFirstTokenAttention);
  const double uniform = figures.at(metrics::kFirstTokenAttentionUniform);
  const double heads = figures.at(metrics::kSinkRate);
  const std::string shares = fmt::format(
      "{} of the attention of {} goes to the first token; uniform attention "
      "would give it {}",
      percent(first), name, percent(uniform));
  if (first < metrics::kSinkThreshold && heads == 0.0) return shares + ": no sink.";
  return fmt::format("{}: {}. {} of its heads have a sink there, and its largest activation is {:.0f}.", shares,
                     first < metrics::kSinkThreshold ? "a sink in some heads" : "a sink", percent(heads),
                     figures.at(metrics::kMassiveActivation));
}

std::string rank_sentence(const std::vector<std::pair<std::string, double>>& models) {
  std::string list;
  for (const auto& [name, rank] : models) list += fmt::format("{}{:.1f} ({})", list.empty() ? "" : ", ", rank, name);
  return fmt::format(
      "What a head writes over this text has so many directions, its effective rank, mean over heads: {}.", list);
}

void show_real_model(const std::string& model, const XrayRequest& wanted) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string name = std::filesystem::path(model).filename().string();
  train::LoadedModel loaded = train::load_model(model);  // reports errors before anything is printed
  fmt::print("\n\nThe X-ray of a model that others trained: {}\n\n", name);
  std::fflush(stdout);
  loaded.name = name;
  std::vector<train::LoadedModel> one;
  one.push_back(std::move(loaded));
  const std::vector<xray::ModelXray> models = xray_of(std::move(one), choices_of(wanted));
  fmt::print("{}\n{}", xray::headline_text(models, xray::MapStyle::shades),
             console::paragraph(sink_verdict(name, models.front().evaluation.report.overall)));
  write_page(models, wanted, kRealModelPage, wanted.text);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("     {} tokens in {}\n", models.front().pieces.size(), console::duration_text(seconds.count()));
  std::fflush(stdout);
}

void show_trained_models(const std::vector<TrainedModel>& trained, const XrayRequest& wanted) {
  fmt::print("\n\nThe X-ray of these models side by side, on held-out text\n\n");
  std::fflush(stdout);
  std::vector<train::LoadedModel> models;
  models.reserve(trained.size());
  for (const TrainedModel& each : trained) {
    models.push_back(
        {.name = each.model.name, .config = each.model.config, .parameters = each.parameters, .trained = {}});
  }
  xray::Choices choices = choices_of(wanted);
  choices.held_out = true;
  const std::vector<xray::ModelXray> xrays = xray_of(std::move(models), choices);
  const train::Evaluation& above = trained.front().evaluations.front();
  std::vector<std::pair<std::string, double>> ranks;
  ranks.reserve(xrays.size());
  for (const xray::ModelXray& model : xrays) ranks.emplace_back(model.name, mean_written_rank(model));
  fmt::print("{}\n{}\n{}", console::paragraph(held_out_sentence(xrays.front().evaluation.tokens, above.tokens)),
             xray::headline_text(xrays, xray::MapStyle::shades), console::paragraph(rank_sentence(ranks)));
  write_page(xrays, wanted, kTrainedModelsPage, wanted.text + ", from its held-out tail");
  std::fflush(stdout);
}

}  // namespace headgate::demo
