// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/real_model.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "library/core/check.hpp"
#include "library/core/stopwatch.hpp"
#include "models/io/staged_file.hpp"
#include "models/io/units.hpp"
#include "tool/console/progress.hpp"
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

/// Writes an HTML page with the X-rays of `models`, unless wanted.directory is empty.
/// `text` describes the text that the models read.
void write_page(const std::vector<xray::ModelXray>& models, const XrayRequest& wanted, const std::string& name,
                const std::string& text) {
  if (wanted.directory.empty()) return;
  const std::string path = wanted.directory + name;
  io::write_text(path, xray::report_page(xray::report_json(models, {text})));
  fmt::print("     head by head and token by token, in a browser: {}\n", path);
}

std::vector<xray::ModelXray> xray_of(const std::vector<train::LoadedModel>& models, const xray::Choices& choices) {
  console::ProgressBar bar;
  auto out = xray::xray(
      models, choices,
      {.progress = [&bar](const std::string& model, double done) { bar.show(done, {.path = model}); }, .plan = {}});
  bar.clear();
  return out;
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

void show_real_model(const std::string& model, const XrayRequest& wanted) {
  const Stopwatch watch;
  const std::string name = std::filesystem::path(model).filename().string();
  train::LoadedModel loaded = train::load_model(model);  // loads before printing, because load_model() may throw
  fmt::print("\n\nThe X-ray of a model that others trained: {}\n\n", name);
  std::fflush(stdout);
  loaded.name = name;
  std::vector<train::LoadedModel> one;
  one.push_back(std::move(loaded));
  const std::vector<xray::ModelXray> models = xray_of(one, choices_of(wanted));
  fmt::print("{}\n", xray::headline_text(models, xray::MapStyle::shades));
  write_page(models, wanted, kRealModelPage, wanted.text);
  fmt::print("     {} tokens in {}\n", models.front().pieces.size(), console::duration_text(watch.seconds()));
  std::fflush(stdout);
}

void show_trained_models(const std::vector<TrainedModel>& trained, const train::TrainSettings& settings,
                         const XrayRequest& wanted) {
  const auto task = word_of(settings.task);
  fmt::print("\n\nThe X-ray of these models side by side, on one sequence of {}\n\n", task);
  std::fflush(stdout);
  std::vector<train::LoadedModel> models;
  models.reserve(trained.size());
  for (const TrainedModel& each : trained) {
    models.push_back(
        {.name = each.model.name, .config = each.model.config, .parameters = each.parameters, .trained = settings});
  }
  const std::vector<xray::ModelXray> xrays = xray_of(models, choices_of(wanted));
  fmt::print("{}\n", xray::headline_text(xrays, xray::MapStyle::shades));
  write_page(xrays, wanted, kTrainedModelsPage, fmt::format("a sequence of {}, from {}", task, wanted.text));
  std::fflush(stdout);
}

}  // namespace headgate::demo
