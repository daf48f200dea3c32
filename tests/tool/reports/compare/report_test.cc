// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/compare/report.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "models/evaluate/registry.hpp"
#include "tool/reports/compare/runs.hpp"

namespace headgate::compare {
namespace {

using nlohmann::ordered_json;

TEST(Report, Report_EachRun_HasItsCurvesAndLastValues) {
  const ordered_json report = report_json(two_runs(), 100);
  const ordered_json& gated = report.at("runs").at(0);
  EXPECT_EQ(gated.at("name"), "runs/gated");
  EXPECT_EQ(gated.at("steps"), 3);
  EXPECT_EQ(gated.at("tokens"), 96);
  EXPECT_EQ(gated.at("records"), 3);
  EXPECT_EQ(gated.at("spikes"), ordered_json({2}));
  EXPECT_EQ(gated.at("notes"), ordered_json::array());
  EXPECT_EQ(gated.at("last"), (ordered_json{{"loss", 2.0}, {"loss_nats", 2.5}, {"gate_mean", 0.25}}));
  EXPECT_EQ(gated.at("lowest").at("loss"), (ordered_json{{"step", 2}, {"value", 1.0}}));
  EXPECT_EQ(gated.at("lowest").at("loss_nats"), (ordered_json{{"step", 3}, {"value", 2.5}}));
  EXPECT_FALSE(gated.at("lowest").contains("gate_mean"));
  EXPECT_EQ(gated.at("curves").at("loss"), (ordered_json{{"steps", {1, 2, 3}}, {"values", {5.0, 1.0, 2.0}}}));
  const ordered_json& plain = report.at("runs").at(1);
  EXPECT_TRUE(plain.at("tokens").is_null());
  EXPECT_EQ(plain.at("curves").size(), 1U);
  EXPECT_EQ(plain.at("notes").size(), 2U);
}

TEST(Report, Report_FiguresOfAnyRun_AreDescribed) {
  const ordered_json figures = report_json(two_runs(), 100).at("figures");
  ASSERT_EQ(figures.size(), 3U);
  EXPECT_EQ(figures[0].at("key"), "loss");
  EXPECT_EQ(figures[1].at("key"), "loss_nats");
  EXPECT_EQ(figures[1].at("sentence"), metrics::kLossNats.meaning);
  EXPECT_EQ(figures[2].at("name"), "gate mean");
}

TEST(Report, Figure_EachOfARun_IsExplained) {
  std::vector<ComparedRun> runs(1);
  runs[0].recorded.steps = {1};
  for (const metrics::Figure* figure : train::recorded_figures())
    runs[0].recorded.curves.push_back({figure, {1}, {1.0}});
  const ordered_json figures = report_json(runs, 100).at("figures");
  EXPECT_EQ(figures.size(), train::recorded_figures().size());
  for (const ordered_json& figure : figures) {
    const auto sentence = figure.at("sentence").get<std::string>();
    EXPECT_GT(sentence.size(), 10U) << figure.at("key");
    EXPECT_TRUE(sentence.ends_with('.')) << figure.at("key");
  }
}

TEST(Report, Curves_LongOrWithGaps_AreThinnedAndKeepGapsNull) {
  std::vector<ComparedRun> runs = two_runs();
  train::Curve& loss = runs[0].recorded.curves[0];
  loss.steps.clear();
  loss.values.clear();
  for (int step = 1; step <= 100; ++step) {
    loss.steps.push_back(step);
    loss.values.push_back(step == 100 ? std::numeric_limits<double>::quiet_NaN() : step);
  }
  const ordered_json run = report_json(runs, 10).at("runs").at(0);
  EXPECT_EQ(run.at("curves").at("loss").at("steps").size(), 10U);
  EXPECT_EQ(run.at("curves").at("loss").at("values").size(), 10U);
  EXPECT_TRUE(run.at("curves").at("loss").at("values").back().is_null());
  EXPECT_TRUE(run.at("last").at("loss").is_null());
  EXPECT_EQ(run.at("lowest").at("loss").at("value"), 1.0);
}

}  // namespace
}  // namespace headgate::compare
