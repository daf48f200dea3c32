// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/compare/terminal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>

#include "tool/reports/compare/runs.hpp"

namespace headgate::compare {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

using Words = std::vector<std::string>;

TEST(RunsText, Text_EachRun_HasALine) {
  const std::vector<std::string> lines = lines_of(runs_text(two_runs()));
  EXPECT_EQ(words_of(lines.at(0)), (Words{"train", "loss", "gate"}));
  EXPECT_EQ(words_of(lines.at(1)), (Words{"run", "steps", "tokens", "loss", "lowest", "nats", "lowest", "mean"}));
  EXPECT_EQ(words_of(lines.at(2)), (Words{"a", "runs/gated", "3", "96", "2", "1", "2.5", "2.5", "0.25"}));
  EXPECT_EQ(words_of(lines.at(3)), (Words{"b", "runs/plain", "2", "-", "4", "4", "-", "-", "-"}));
}

TEST(RunsText, Text_TooManyRuns_SaysWhatIsLeftOut) {
  const std::string text = runs_text(two_runs());
  EXPECT_NE(text.find("runs/plain: the last line of metrics.jsonl is cut off"), std::string::npos) << text;
  EXPECT_NE(text.find("runs/plain: 7 records are left out"), std::string::npos) << text;
  EXPECT_EQ(text.find("runs/gated: "), std::string::npos) << text;
}

TEST(RunsText, Diagram_EachRun_IsDrawnAtItsValues) {
  const std::vector<std::string> lines = lines_of(runs_text(two_runs()));
  std::size_t top = 0;
  while (words_of(lines.at(top)) != Words{"train_loss"}) ++top;
  EXPECT_EQ(lines.at(top + 1), "     " + std::string(train::kStepLoss.meaning));
  ++top;
  const auto plot = [&](std::size_t row) { return lines.at(top + 1 + row).substr(lines.at(top + 1).find('|') + 1); };
  EXPECT_EQ(plot(0), "*") << "both begin at 5, the highest";
  EXPECT_EQ(plot(1), std::string(32, ' ') + "b") << "4 at half of the steps";
  EXPECT_EQ(plot(7), std::string(32, ' ') + "a") << "1, the lowest";
  EXPECT_EQ(plot(5), std::string(63, ' ') + "a") << "2 at the last step";
  EXPECT_EQ(words_of(lines.at(top + 9)), (Words{"step", "1", "3"}));
}

TEST(RunsText, Runs_AnyNumber_HaveMarksOfTheirOwn) {
  for (const std::size_t count : {1U, 26U, 27U, 52U, 53U, 62U, 63U, 100U}) {
    std::vector<ComparedRun> runs(count);
    for (std::size_t i = 0; i < count; ++i) {
      runs[i].name = "run" + std::to_string(i);
      runs[i].recorded.steps = {1, 100};
      const auto step = static_cast<std::int64_t>(i) + 1;  // each run has a column of its own if at most 64 are drawn
      runs[i].recorded.curves = {{&train::kStepLoss, {step}, {static_cast<double>(i)}}};
    }
    const std::string text = runs_text(runs);
    const std::vector<std::string> lines = lines_of(text);
    std::set<std::string> marks;
    std::string drawn;
    for (const std::string& line : lines) {
      const Words words = words_of(line);
      if (words.size() > 1 && words[1].starts_with("run")) marks.insert(words[0]);
      if (line.find('|') != std::string::npos) drawn += line.substr(line.find('|') + 1);
    }
    EXPECT_EQ(marks.size(), std::min<std::size_t>(count, 62)) << text;
    for (const std::string& mark : marks) EXPECT_EQ(std::count(drawn.begin(), drawn.end(), mark[0]), 1) << mark << text;
    EXPECT_EQ(text.find("The charts show the first 62 of " + std::to_string(count) + " runs") != std::string::npos,
              count > 62)
        << text;
  }
}

TEST(RunsText, Name_ControlCharacters_AreEscaped) {
  std::vector<ComparedRun> runs = two_runs();
  runs[0].name = "a\x1b[2J\nb\xff";
  const std::string text = runs_text(runs);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("a [2J b\\xff"), std::string::npos);
}

TEST(RunsText, Diagram_DifferenceOverflows_IsDrawn) {
  std::vector<ComparedRun> runs(1);
  const double most = std::numeric_limits<double>::max();
  runs[0].recorded.steps = {1, 2, 3};
  runs[0].recorded.curves = {{&train::kStepLoss, {1, 2, 3}, {most, -most, most}}};
  const std::string text = runs_text(runs);
  EXPECT_NE(text.find("1.798e+308 |a" + std::string(62, ' ') + "a\n"), std::string::npos) << text;
  EXPECT_NE(text.find("-1.798e+308 |" + std::string(32, ' ') + "a\n"), std::string::npos) << text;
}

TEST(RunsText, Diagram_OneStepOrOneValue_IsDrawn) {
  std::vector<ComparedRun> runs(1);
  runs[0].name = "one";
  runs[0].recorded.steps = {5};
  runs[0].recorded.curves = {{&train::kStepLoss, {5}, {3.0}}};
  EXPECT_NE(runs_text(runs).find("|a\n"), std::string::npos) << runs_text(runs);
}

}  // namespace
}  // namespace headgate::compare
