// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/training.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "library/core/check.hpp"
#include "models/data/prose.hpp"
#include "models/io/scratch.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/train/task_defaults.hpp"
#include "models/train/trainer.hpp"
#include "tool/console/table.hpp"
#include "tool/demo/real_model.hpp"

namespace headgate::demo {
namespace {

using train::Task;

struct Shown {
  bool finished = true;
  std::string out, err;
};

Shown show(
    const std::vector<Comparison>& comparisons, const std::function<bool()>& interrupted = [] { return false; }) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Shown shown;
  for (const Comparison& comparison : comparisons) {
    shown.finished = shown.finished && !show_training(comparison, interrupted).empty();
  }
  shown.out = ::testing::internal::GetCapturedStdout();
  shown.err = ::testing::internal::GetCapturedStderr();
  return shown;
}

/// Cells of the first line that begins with `name` and is a row of a table.
std::vector<std::string> row(const std::string& out, const std::string& name, std::size_t cells) {
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("     " + name + " ")) continue;
    std::istringstream words(line.substr(5 + name.size()));
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (found.size() == cells) return found;
  }
  ADD_FAILURE() << "no row " << name << " of " << cells << " cells in\n" << out;
  return {};
}

/// −1 for the dash of a model that has no gate.
std::vector<double> numbers(const std::string& out, const std::string& name, std::size_t cells) {
  std::vector<double> found;
  for (const std::string& cell : row(out, name, cells)) found.push_back(cell == "-" ? -1.0 : std::stod(cell));
  for (const double number : found) EXPECT_TRUE(std::isfinite(number)) << name;
  return found;
}

class DemoTrainingTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_bytes(text, testing::prose(4000)); }

  train::TrainSettings settings(Task task) const {
    train::TrainSettings settings = train::task_settings(task);
    settings.paths = {text};
    settings.threads = 2;
    settings.schedule.steps = 12;
    settings.batch = 2;
    settings.eval_tokens = 256;
    return settings;
  }
  static models::DecoderConfig small_model(Task task) {
    models::DecoderConfig model = train::task_model(task);
    model.layers = 1;
    model.dim = 16;
    model.heads = 2;
    model.kv_heads = 1;
    model.head_dim = 8;
    model.ffn = 48;
    model.seq_len = 16;
    return model;
  }
  Comparison on_backcopy() const {
    return compare_on_backcopy(small_model(Task::bigram_backcopy), settings(Task::bigram_backcopy), /*seeds=*/2);
  }
  Comparison on_text() const { return compare_on_text(small_model(Task::text), settings(Task::text)); }
  std::vector<Comparison> comparisons() const {
    std::vector<Comparison> both;
    both.push_back(on_backcopy());
    both.push_back(on_text());
    return both;
  }

  testing::Scratch scratch;
  std::string text = scratch / "text";
};

TEST_F(DemoTrainingTest, Backcopy_EachModel_HasARow) {
  std::vector<Comparison> one;
  one.push_back(on_backcopy());
  const Shown shown = show(one);
  ASSERT_TRUE(shown.finished) << shown.err;
  EXPECT_EQ(shown.err, "");
  for (const char* name : {"no gate", "headwise", "elementwise"}) {
    const std::vector<double> cells = numbers(shown.out, name, 7);
    ASSERT_EQ(cells.size(), 7U);
    for (const int share : {0, 1, 2}) EXPECT_LE(cells[static_cast<std::size_t>(share)], 1.0);
    const bool gated = std::string(name) != "no gate";
    EXPECT_EQ(cells[1] >= 0.0, gated);
    EXPECT_EQ(cells[2] >= 0.0, gated);
    EXPECT_GT(cells[3], 0.7 * std::log(264.0)) << "twelve steps teach little";
    EXPECT_LT(cells[3], 1.1 * std::log(264.0)) << "and harm little";
    EXPECT_GT(cells[4], 0.0);
    EXPECT_EQ(cells[5] >= 0.0, gated) << "what passes the gate";
    EXPECT_LE(cells[5], cells[0]);
    EXPECT_GT(cells[6], 0.0);
    for (const char* seed : {" 1 ", " 2 "}) EXPECT_NE(shown.out.find(name + std::string(seed)), std::string::npos);
  }
  EXPECT_NE(shown.out.find("3 models with 2 seeds of 12 steps"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("6 runs in "), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("has not learnt to copy"), std::string::npos) << shown.out;
}

TEST_F(DemoTrainingTest, Text_EachModel_HasARow) {
  std::vector<Comparison> one;
  one.push_back(on_text());
  const Shown shown = show(one);
  ASSERT_TRUE(shown.finished) << shown.err;
  for (const char* name : {"no gate", "headwise", "elementwise"}) {
    const std::vector<double> cells = numbers(shown.out, name, 10);
    ASSERT_EQ(cells.size(), 10U);
    EXPECT_NEAR(cells[1], cells[0] / std::log(2.0), 2e-3) << "bits and nats";
    EXPECT_LT(cells[0], std::log(256.0) + 0.1);
    EXPECT_NEAR(cells[3], 0.1587, 1e-4) << "mean of 1/(t + 1) over queries 1 to 15";
    const bool gated = std::string(name) != "no gate";
    EXPECT_EQ(cells[6] >= 0.0, gated);
    EXPECT_GE(cells[7], cells[8]);
  }
  EXPECT_NE(shown.out.find("impression, not a result"), std::string::npos) << shown.out;
}

TEST_F(DemoTrainingTest, Evaluation_MetricsNotShown_AreNotComputed) {
  for (const Comparison& comparison : comparisons()) {
    EXPECT_FALSE(comparison.metrics.empty());
    for (const metrics::Metric* metric : comparison.metrics) {
      EXPECT_FALSE(metric->inputs.has(metrics::Input::exit_loss)) << metric->name;
      EXPECT_EQ(metric->scope == metrics::Scope::triggers, comparison.sources.front()->has_triggers()) << metric->name;
    }
  }
}

TEST_F(DemoTrainingTest, ModelsOfAComparison_Configs_DifferInTheirGateOnly) {
  for (const Comparison& comparison : comparisons()) {
    ASSERT_EQ(comparison.models.size(), 3U);
    const models::DecoderConfig& plain = comparison.models.front().config;
    EXPECT_FALSE(has_gate(plain.gate));
    for (const ComparedModel& model : comparison.models) {
      models::DecoderConfig config = models::baseline_of(model.config);
      config.ffn = plain.ffn;
      EXPECT_EQ(config, plain) << model.name;
    }
    EXPECT_EQ(layers::gate_name(comparison.models[1].config.gate), "g1-headwise-sigmoid-mul");
    EXPECT_EQ(layers::gate_name(comparison.models[2].config.gate), "g1-elementwise-sigmoid-mul");
  }
}

TEST_F(DemoTrainingTest, LanguageModels_OfTheDemo_AreOfEqualSize) {
  train::TrainSettings wanted = demo_text_settings();
  wanted.paths = {text};
  const Comparison comparison = compare_on_text(demo_text_model(), wanted);
  const auto plain = static_cast<double>(models::parameter_count(comparison.models.front().config));
  EXPECT_GT(plain, 0.4e6);
  EXPECT_LT(plain, 0.5e6);
  for (const ComparedModel& model : comparison.models) {
    EXPECT_NEAR(static_cast<double>(models::parameter_count(model.config)), plain, 0.01 * plain) << model.name;
  }
  const auto tokens = static_cast<double>(wanted.schedule.steps * comparison.settings.tokens_per_step());
  EXPECT_NEAR(tokens, 0.4e6, 0.1e6);
}

TEST_F(DemoTrainingTest, Backcopy_EverySeed_IsTheRunWithASink) {
  train::TrainSettings wanted = demo_backcopy_settings();
  wanted.paths = {text};
  const Comparison comparison = compare_on_backcopy(demo_backcopy_model(), wanted);
  EXPECT_EQ(comparison.settings.schedule.steps, 1000);
  ASSERT_EQ(comparison.sources.size(), 3U);
  std::vector<std::int32_t> first(64), last(64), targets(64);
  comparison.sources.front()->training_sequence(first.data(), targets.data(), 0);
  comparison.sources.back()->training_sequence(last.data(), targets.data(), 0);
  EXPECT_NE(first, last) << "seeds have their own data";
  EXPECT_EQ(comparison.settings.schedule.warmup, 100);
  EXPECT_EQ(comparison.settings.batch, 16);
  for (const ComparedModel& model : comparison.models) {
    EXPECT_EQ(model.config.seq_len, 64);
    EXPECT_EQ(model.config.embeddings, models::Embeddings::separate);
    EXPECT_EQ(model.config.qk_norm, models::QkNorm::none);
  }
}

TEST_F(DemoTrainingTest, Output_EveryLine_FitsAHundredColumns) {
  const Shown shown = show(comparisons());
  std::istringstream lines(shown.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), console::kTextColumns) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

TEST_F(DemoTrainingTest, Training_Interrupted_EndsAtOnce) {
  for (const int last : {5, 60}) {  // in the first runs, and in the last ones
    std::atomic<int> steps = 0;
    const Shown shown = show(comparisons(), [&] { return ++steps >= last; });
    EXPECT_FALSE(shown.finished);
    EXPECT_LE(steps, last + 1) << "the other run takes at most one more step";
    EXPECT_EQ(shown.out.find("text: 3 models"), std::string::npos) << shown.out;
  }
}

TEST_F(DemoTrainingTest, Figures_AnyNumberOfThreads_AreTheSame) {
  const auto table = [&](int threads) {
    std::vector<Comparison> one;
    one.push_back(on_backcopy());
    one.front().settings.threads = threads;
    std::vector<std::string> cells = row(show(one).out, "elementwise", 7);
    cells.pop_back();  // the speed
    return cells;
  };
  EXPECT_EQ(table(1), table(4));
}

TEST_F(DemoTrainingTest, Xray_ModelsOfBackcopy_ShowsASequenceOfTheTask) {
  const Comparison comparison = on_backcopy();
  const XrayRequest wanted{.text = text, .directory = scratch.path()};
  prepare_pages(wanted);
  ::testing::internal::CaptureStdout();
  show_trained_models(show_training(comparison, [] { return false; }), comparison.settings, wanted);
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(out.find("on one sequence of bigram-backcopy\n"), std::string::npos) << out;
  EXPECT_NE(out.find("\n     no gate: "), std::string::npos) << "a verdict: " << out;
  EXPECT_NE(out.find("\n     headwise: "), std::string::npos) << out;
  const std::string page = testing::read_bytes(scratch / "trained-models.html");
  EXPECT_NE(page.find("\"text\":\"a sequence of bigram-backcopy, from " + text + '"'), std::string::npos);
  EXPECT_NE(page.find("{\"name\":\"no gate\""), std::string::npos);
  EXPECT_NE(page.find("{\"name\":\"elementwise\""), std::string::npos);
}

TEST_F(DemoTrainingTest, Training_Diverged_IsReported) {
  models::DecoderConfig wild = small_model(Task::text);
  wild.init_std = 1e30;
  std::vector<Comparison> one;
  one.push_back(compare_on_text(wild, settings(Task::text)));
  ::testing::internal::CaptureStdout();
  EXPECT_THROW(show_training(one.front(), [] { return false; }), train::Diverged);
  ::testing::internal::GetCapturedStdout();
}

TEST_F(DemoTrainingTest, Text_TooSmall_IsRefused) {
  testing::write_bytes(text, "the gate");
  EXPECT_THROW(on_text(), Error);
  testing::write_bytes(text, "e");
  EXPECT_THROW(on_backcopy(), Error);
}

}  // namespace
}  // namespace headgate::demo
