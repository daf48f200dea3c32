// SPDX-License-Identifier: Apache-2.0
#include "models/train/metrics_reader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "models/evaluate/first_token_attention_gated.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/gate_mean.hpp"
#include "models/evaluate/loss.hpp"
#include "models/io/file_error.hpp"
#include "models/io/scratch.hpp"
#include "models/train/metrics_log.hpp"
#include "models/train/metrics_record.hpp"

namespace headgate::train {
namespace {

using Steps = std::vector<std::int64_t>;

class MetricsReaderTest : public ::testing::Test {
 protected:
  RecordedRun read(const std::string& bytes) const {
    testing::write_bytes(path, bytes);
    return read_metrics(path);
  }

  void expect_refused(const std::string& bytes, const std::string& why) const {
    try {
      read(bytes);
      ADD_FAILURE() << "taken without complaint: " << bytes;
    } catch (const io::FileError& error) {
      EXPECT_EQ(std::string(error.what()).find(path + ": " + why), 0U) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }

  testing::Scratch scratch;
  const std::string path = scratch / "m.jsonl";
};

TEST_F(MetricsReaderTest, Records_OfARun_AreRead) {
  Progress progress;
  progress.step = {.step = 1, .loss = 5.5, .grad_norm = 2.0, .lr = 0.25, .tokens = 128, .seconds = 0.5, .spike = false};
  progress.tokens_per_second = 256.0;
  {
    MetricsLog log(path, 0);
    log.add(progress);
    progress.step.step = 2;
    progress.step.loss = 4.5;
    progress.step.tokens = 256;
    progress.step.spike = true;
    progress.mfu = 0.75;
    progress.evaluation = Evaluation{};
    progress.evaluation->report.overall.set(metrics::kLossNats, 4.25);
    progress.evaluation->report.overall.set(metrics::kGateMean, std::nullopt);
    progress.evaluation->report.backcopy.emplace().set(metrics::kGateByTrigger.figures[0], 0.125);
    log.add(progress);
  }
  const RecordedRun run = read_metrics(path);
  EXPECT_EQ(run.steps, (Steps{1, 2}));
  EXPECT_EQ(run.spikes, Steps{2});
  EXPECT_EQ(run.tokens, 256);
  EXPECT_EQ(run.replaced, 0);
  EXPECT_FALSE(run.cut_off);
  const auto expect_curve = [&](const metrics::Figure& figure, const Steps& steps, const std::vector<double>& values) {
    const Curve* curve = run.find(figure);
    ASSERT_NE(curve, nullptr) << figure.key;
    EXPECT_EQ(curve->steps, steps) << figure.key;
    EXPECT_EQ(curve->values, values) << figure.key;
  };
  expect_curve(kStepLoss, {1, 2}, {5.5, 4.5});
  expect_curve(kGradNorm, {1, 2}, {2.0, 2.0});
  expect_curve(kLearningRate, {1, 2}, {0.25, 0.25});
  expect_curve(kTokensPerSecond, {1, 2}, {256.0, 256.0});
  expect_curve(kMfu, {2}, {0.75});
  expect_curve(metrics::kLossNats, {2}, {4.25});
  expect_curve(metrics::kGateByTrigger.figures[0], {2}, {0.125});
  EXPECT_EQ(run.find(metrics::kGateMean), nullptr) << "all null: a model without a gate";
  EXPECT_EQ(run.find(metrics::kFirstTokenAttentionGated), nullptr) << "never recorded";
}

TEST_F(MetricsReaderTest, Figure_EachOfAStep_IsExplained) {
  for (const metrics::Figure* figure : kStepFigures) EXPECT_TRUE(figure->meaning.ends_with('.')) << figure->key;
}

TEST_F(MetricsReaderTest, Null_BetweenNumbers_IsNoNumber) {
  const RecordedRun run = read("{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":null}\n{\"step\":3,\"loss\":1}\n");
  const Curve* loss = run.find(kStepLoss);
  ASSERT_NE(loss, nullptr);
  ASSERT_EQ(loss->values.size(), 3U);
  EXPECT_TRUE(std::isnan(loss->values[1]));
  EXPECT_EQ(loss->values[2], 1.0);
}

TEST_F(MetricsReaderTest, Log_OfAKilledRun_HasItsWholeLines) {
  const std::string whole = "{\"step\":1,\"loss\":3.0}\n{\"step\":2,\"loss\":2.0}\n";
  for (const char* torn : {"{", "{\"st", "{\"step\":3", "{\"step\":3,\"loss\":2.5,\"gr"}) {
    const RecordedRun run = read(whole + torn);
    EXPECT_TRUE(run.cut_off) << torn;
    EXPECT_EQ(run.steps, (Steps{1, 2})) << torn;
  }
  const RecordedRun run = read(whole + "{\"step\":3,\"loss\":1.0}");
  EXPECT_FALSE(run.cut_off) << "only the newline is missing";
  EXPECT_EQ(run.steps, (Steps{1, 2, 3}));
  expect_refused(whole + "{\"step\":3\n", "line 3: not JSON");
}

TEST_F(MetricsReaderTest, Steps_GoingBack_KeepTheLaterRecords) {
  const RecordedRun run = read(
      "{\"step\":1,\"loss\":5,\"mfu\":0.5}\n{\"step\":2,\"loss\":9,\"spike\":true,\"tokens\":8}\n"
      "{\"step\":4,\"loss\":8,\"eval\":{\"loss_nats\":7}}\n{\"step\":2,\"loss\":4,\"tokens\":6}\n"
      "{\"step\":3,\"loss\":3}\n");
  EXPECT_EQ(run.steps, (Steps{1, 2, 3}));
  EXPECT_EQ(run.replaced, 2);
  EXPECT_EQ(run.spikes, Steps{});
  EXPECT_EQ(run.tokens, 6);
  EXPECT_EQ(run.find(kStepLoss)->values, (std::vector<double>{5, 4, 3}));
  EXPECT_EQ(run.find(kMfu)->steps, Steps{1});
  EXPECT_EQ(run.find(metrics::kLossNats), nullptr) << "its step was taken back";
  const RecordedRun again = read("{\"step\":1,\"loss\":5}\n{\"step\":1,\"loss\":4}\n");
  EXPECT_EQ(again.steps, Steps{1});
  EXPECT_EQ(again.replaced, 1);
  EXPECT_EQ(again.find(kStepLoss)->values, std::vector<double>{4});
}

TEST_F(MetricsReaderTest, Steps_GoingBackAtRandom_ReadAsIfReplacedRecordsWereNeverWritten) {
  std::mt19937 rng(7);
  const auto maybe = [&](const std::string& text) { return rng() % 2 == 0 ? text : ""; };
  for (int file = 0; file < 300; ++file) {
    std::map<std::int64_t, std::string> kept;
    std::string all;
    std::int64_t step = 0, replaced = 0;
    for (auto lines = 1 + rng() % 12; lines > 0; --lines) {
      step = std::max<std::int64_t>(1, step + 1 - static_cast<std::int64_t>(rng() % 3 == 0 ? rng() % 5 : 0));
      const auto any = [&] { return std::to_string(rng() % 100); };
      const std::string record = "{\"step\":" + std::to_string(step) + maybe(",\"loss\":" + any()) +
                                 maybe(",\"tokens\":" + any()) + maybe(",\"spike\":true") +
                                 maybe(",\"eval\":{\"loss_nats\":" + any() + "}") + ",\"mfu\":1}\n";
      replaced += std::distance(kept.lower_bound(step), kept.end());
      kept.erase(kept.lower_bound(step), kept.end());
      kept.emplace(step, record);
      all += record;
    }
    std::string once;
    for (const auto& [at, record] : kept) once += record;
    const RecordedRun run = read(all), wanted = read(once);
    ASSERT_EQ(run.steps, wanted.steps) << all;
    ASSERT_EQ(run.tokens, wanted.tokens) << all;
    ASSERT_EQ(run.spikes, wanted.spikes) << all;
    ASSERT_EQ(run.replaced, replaced) << all;
    ASSERT_EQ(run.curves.size(), wanted.curves.size()) << all;
    for (std::size_t i = 0; i < run.curves.size(); ++i) {
      ASSERT_EQ(run.curves[i].figure, wanted.curves[i].figure) << all;
      ASSERT_EQ(run.curves[i].steps, wanted.curves[i].steps) << all;
      ASSERT_EQ(run.curves[i].values, wanted.curves[i].values) << all;
    }
  }
}

TEST_F(MetricsReaderTest, Line_NoRecord_IsRefusedWithLineAndValue) {
  const std::string first = "{\"step\":1,\"loss\":3.0}\n";
  expect_refused("", "holds no record of a step");
  expect_refused("{\"step\":1,\"lo", "holds no record of a step");
  expect_refused("{\"step\":1}\n", "holds no figure of a run");
  expect_refused("{\"step\":1,\"loss\":null}\n", "holds no figure of a run");
  expect_refused(first + "\n", "line 2: not JSON");
  expect_refused(first + "my notes", "line 2: not JSON");
  expect_refused(first + "{\"step\":2,\"loss\":NaN}\n", "line 2: not JSON");
  expect_refused(first + "{\"step\":2,\"loss\":1e999}\n", "line 2: not JSON");
  expect_refused(first + std::string("{\"step\":2\0}\n", 12), "line 2: not JSON");
  expect_refused(first + "{\"step\":2,\"step\":3}\n", "line 2: duplicate key 'step'");
  expect_refused(first + "{\"step\":2,\"x\":" + std::string(1000, '[') + '\n', "line 2: brackets nested");
  expect_refused(first + "[2]\n", "line 2: is [2], not an object");
  expect_refused(first + "{\"loss\":2}\n", "line 2: 'step' is missing");
  for (const char* step : {"0", "-3", "1.5", "\"2\"", "null", "1e30", "18446744073709551615"}) {
    expect_refused(first + "{\"step\":" + step + ",\"loss\":1}\n", "line 2: 'step' is ");
  }
  expect_refused(first + "{\"step\":2,\"loss\":\"low\"}\n", "line 2: 'loss' is \"low\", not a number");
  expect_refused(first + "{\"step\":2,\"loss\":true}\n", "line 2: 'loss' is true, not a number");
  expect_refused(first + "{\"step\":2,\"tokens\":-1}\n", "line 2: 'tokens' is -1, not a whole number");
  expect_refused(first + "{\"step\":9007199254740993}\n",
                 "line 2: 'step' is 9007199254740993, not a whole number from 1 to");
  expect_refused(first + "{\"step\":2,\"spike\":1}\n", "line 2: 'spike' is 1, not true or false");
  expect_refused(first + "{\"step\":2,\"eval\":[]}\n", "line 2: 'eval' is [], not an object");
  expect_refused(first + "{\"step\":2,\"eval\":{\"backcopy\":0}}\n", "line 2: 'backcopy' is 0, not an object");
  expect_refused(first + "{\"step\":2,\"eval\":{\"gate_mean\":{}}}\n", "line 2: 'gate_mean' is {}, not a number");
}

TEST_F(MetricsReaderTest, File_MissingOrTooLarge_IsRefused) {
  EXPECT_THROW(read_metrics(scratch / "absent"), io::FileError);
  std::filesystem::create_directory(scratch / "folder");
  EXPECT_THROW(read_metrics(scratch / "folder"), io::FileError);
  expect_refused("{\"step\":1,\"x\":\"" + std::string(std::size_t{1} << 25, 'x'), "line 1 has more than ");
  testing::write_bytes(path, "");
  std::filesystem::resize_file(path, (std::uintmax_t{1} << 30) + 1);  // sparse
  EXPECT_THROW(
      {
        try {
          read_metrics(path);
        } catch (const io::FileError& error) {
          EXPECT_NE(std::string(error.what()).find("1073741825 bytes, more than"), std::string::npos) << error.what();
          throw;
        }
      },
      io::FileError);
}

TEST_F(MetricsReaderTest, Lines_AcrossPieces_AreRead) {
  std::string text;  // several pieces of a megabyte
  for (int step = 1; step <= 3000; ++step) {
    text += "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(step) + ",\"x\":\"" +
            std::string(1000, 'x') + "\"}\n";
  }
  const RecordedRun run = read(text);
  ASSERT_EQ(run.steps.size(), 3000U);
  for (std::size_t i = 0; i < 3000; ++i) ASSERT_EQ(run.find(kStepLoss)->values[i], static_cast<double>(i + 1));
}

}  // namespace
}  // namespace headgate::train
