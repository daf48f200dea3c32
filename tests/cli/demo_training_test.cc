// SPDX-License-Identifier: Apache-2.0
#include "cli/demo_training.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/demo_table.hpp"
#include "cli/verbs.hpp"
#include "core/check.hpp"
#include "io/scratch.hpp"
#include "layers/gate_variant.hpp"
#include "train/prose.hpp"

namespace headgate::cli {
namespace {

struct Shown {
  int status = -1;
  std::string out, err;
};

Shown show(const std::vector<Story>& stories, const DemoBudget& budget = {}) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Shown shown;
  shown.status = show_training(stories, budget);
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

  train::RunChoices run() const {
    train::RunChoices options;
    options.of<&train::TrainSettings::paths>() = {text};
    options.of<&train::TrainSettings::threads>() = 2;
    options.of<&train::Schedule::steps>() = 12;
    options.of<&train::TrainSettings::batch>() = 2;
    options.of<&train::TrainSettings::eval_tokens>() = 256;
    return options;
  }
  static train::ModelChoices sizes() {
    train::ModelChoices options;
    options.keys.of<&models::DecoderConfig::layers>() = 1;
    options.keys.of<&models::DecoderConfig::dim>() = 16;
    options.keys.of<&models::DecoderConfig::heads>() = 2;
    options.keys.of<&models::DecoderConfig::seq_len>() = 16;
    return options;
  }
  std::vector<Story> stories() const {
    std::vector<Story> both;
    both.push_back(backcopy_story(run(), sizes()));
    both.push_back(text_story(run(), sizes()));
    return both;
  }

  testing::Scratch scratch;
  std::string text = scratch / "text";
};

TEST_F(DemoTrainingTest, BackcopyHasARowForEachModel) {
  std::vector<Story> one;
  one.push_back(backcopy_story(run(), sizes()));
  const Shown shown = show(one);
  ASSERT_EQ(shown.status, kSuccess) << shown.err;
  EXPECT_EQ(shown.err, "");
  for (const char* name : {"no gate", "headwise", "elementwise"}) {
    const std::vector<double> cells = numbers(shown.out, name, 8);
    ASSERT_EQ(cells.size(), 8U);
    for (const int share : {0, 1, 2, 3}) EXPECT_LE(cells[static_cast<std::size_t>(share)], 1.0);
    const bool gated = std::string(name) != "no gate";
    EXPECT_EQ(cells[2] >= 0.0, gated);
    EXPECT_EQ(cells[3] >= 0.0, gated);
    EXPECT_GT(cells[4], 0.7 * std::log(264.0)) << "twelve steps teach little";
    EXPECT_LT(cells[4], 1.1 * std::log(264.0)) << "and harm little";
    EXPECT_GT(cells[6], 0.0);
    EXPECT_GT(cells[7], 0.0);
  }
  EXPECT_NE(shown.out.find("has not learnt to copy"), std::string::npos) << shown.out;
}

TEST_F(DemoTrainingTest, TextHasARowForEachModel) {
  std::vector<Story> one;
  one.push_back(text_story(run(), sizes()));
  const Shown shown = show(one);
  ASSERT_EQ(shown.status, kSuccess) << shown.err;
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
  EXPECT_NE(shown.out.find("an impression, not a result"), std::string::npos) << shown.out;
}

TEST_F(DemoTrainingTest, ModelsOfAStoryDifferInTheirGateAlone) {
  for (const Story& story : stories()) {
    ASSERT_EQ(story.models.size(), 3U);
    const models::DecoderConfig& plain = story.models.front().config;
    EXPECT_FALSE(has_gate(plain.gate));
    for (const StoryModel& model : story.models) {
      models::DecoderConfig config = models::baseline_of(model.config);
      config.ffn = plain.ffn;
      EXPECT_EQ(config, plain) << model.name;
    }
    EXPECT_EQ(layers::gate_name(story.models[1].config.gate), "g1-headwise-sigmoid-mul");
    EXPECT_EQ(layers::gate_name(story.models[2].config.gate), "g1-elementwise-sigmoid-mul");
  }
}

TEST_F(DemoTrainingTest, TheDemosLanguageModelsAreOfEqualSize) {
  train::RunChoices options = run();
  options.of<&train::Schedule::steps>().reset();
  options.of<&train::TrainSettings::batch>().reset();
  options.of<&train::TrainSettings::eval_tokens>().reset();
  choose_demo_text_run(options);
  const Story story = text_story(options, demo_text_sizes());
  const auto plain = static_cast<double>(models::parameter_count(story.models.front().config));
  EXPECT_GT(plain, 0.75e6);
  EXPECT_LT(plain, 1.1e6);
  for (const StoryModel& model : story.models) {
    EXPECT_NEAR(static_cast<double>(models::parameter_count(model.config)), plain, 0.01 * plain) << model.name;
  }
  const auto tokens = static_cast<double>(wanted_steps(story) * story_settings(story, 1).tokens_per_step());
  EXPECT_NEAR(tokens, 1e6, 0.3e6);
}

TEST_F(DemoTrainingTest, BackcopyIsTheRunThatMakesASinkOnEverySeed) {
  train::RunChoices options;
  options.of<&train::TrainSettings::paths>() = {text};
  choose_demo_backcopy_run(options);
  const Story story = backcopy_story(options, demo_backcopy_sizes());
  EXPECT_EQ(wanted_steps(story), 1000);
  EXPECT_EQ(story_settings(story, 50).schedule.steps, 50);
  EXPECT_EQ(story_settings(story, 50).batch, 16);
  for (const StoryModel& model : story.models) {
    EXPECT_EQ(model.config.seq_len, 64);
    EXPECT_EQ(model.config.embeddings, models::Embeddings::separate);
    EXPECT_EQ(model.config.qk_norm, models::QkNorm::none);
  }
}

TEST_F(DemoTrainingTest, TheSameFiguresEveryTime) {
  const auto figures = [](const std::string& out) {
    std::vector<std::string> cells = row(out, "headwise", 10);
    cells.pop_back();  // the speed
    return cells;
  };
  EXPECT_EQ(figures(show(stories()).out), figures(show(stories()).out));
}

TEST_F(DemoTrainingTest, ASlowMachineTakesFewerSteps) {
  std::vector<Story> both = stories();
  both[0].least_steps = 5;
  both[1].least_steps = 7;
  DemoBudget budget;
  budget.aim_seconds = budget.limit_seconds = 0.0;
  const Shown shown = show(both, budget);
  ASSERT_EQ(shown.status, kSuccess);
  EXPECT_NE(shown.out.find("bigram-backcopy: 5 steps instead of 12"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("text: 7 steps instead of 12"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("still fewer steps would not show much"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("bigram-backcopy: three models of 5 steps"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("text: three models of 7 steps"), std::string::npos) << shown.out;
}

TEST_F(DemoTrainingTest, FitsAHundredColumns) {
  const Shown shown = show(stories());
  EXPECT_EQ(shown.out.find("instead of"), std::string::npos) << "there was time enough";
  std::istringstream lines(shown.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), kDemoColumns) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

/// Passes a source on, and sends a signal with the given sequence.
class Signalling : public train::SequenceSource {
 public:
  Signalling(std::unique_ptr<train::SequenceSource> source, int left) : source_(std::move(source)), left_(left) {}

  std::int64_t seq_len() const override { return source_->seq_len(); }
  std::int64_t vocab() const override { return source_->vocab(); }
  void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override {
    if (--left_ == 0) std::raise(SIGTERM);
    source_->training_sequence(tokens, targets, index);
  }
  std::int64_t held_out_count() const override { return source_->held_out_count(); }
  void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override {
    source_->held_out_sequence(tokens, targets, index);
  }
  bool is_trigger(std::int32_t token) const override { return source_->is_trigger(token); }
  bool has_triggers() const override { return source_->has_triggers(); }
  std::uint64_t fingerprint() const override { return source_->fingerprint(); }
  std::string description() const override { return source_->description(); }

 private:
  std::unique_ptr<train::SequenceSource> source_;
  mutable int left_;
};

TEST_F(DemoTrainingTest, ASignalEndsItAtOnce) {
  for (const int sequence : {5, 3 * 2 * 12 + 3}) {  // while the speed is measured, and in the second model's training
    std::vector<Story> both = stories();
    both[0].source = std::make_unique<Signalling>(std::move(both[0].source), sequence);
    const Shown shown = show(both);
    EXPECT_EQ(shown.status, 128 + SIGTERM);
    EXPECT_EQ(shown.err, "headgate demo: interrupted\n");
    EXPECT_EQ(shown.out.find("text: three models"), std::string::npos) << shown.out;
  }
}

TEST_F(DemoTrainingTest, SaysThatATrainingDiverged) {
  train::ModelChoices wild = sizes();
  wild.keys.of<&models::DecoderConfig::init_std>() = 1e30;
  std::vector<Story> one;
  one.push_back(text_story(run(), wild));
  const Shown shown = show(one);
  EXPECT_EQ(shown.status, kCheckFailed);
  EXPECT_TRUE(shown.err.starts_with("headgate demo: the training diverged: step ")) << shown.err;
}

TEST_F(DemoTrainingTest, RefusesATextThatIsTooSmall) {
  testing::write_bytes(text, "the gate");
  EXPECT_THROW(text_story(run(), sizes()), Error);
  testing::write_bytes(text, "e");
  EXPECT_THROW(backcopy_story(run(), sizes()), Error);
}

}  // namespace
}  // namespace headgate::cli
