// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/train/run_directory.hpp"
#include "tool/cli/small_verbs.hpp"

namespace headgate {
namespace {

using nlohmann::json;
using testing::expect_refused;
using testing::Outcome;
using testing::TrainVerb;

class CompareVerbTest : public ::testing::Test {
 protected:
  Outcome compare(const std::vector<std::string>& runs, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"compare"};
    for (const std::string& run : runs) all.push_back(verb.path(run));
    all.insert(all.end(), more.begin(), more.end());
    return testing::headgate(all);
  }
  json report(const std::vector<std::string>& runs) const {
    const Outcome outcome = compare(runs, {"--json-out", verb.path("report.json")});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("headgate compare: wrote " + verb.path("report.json") + ": ")) << outcome.err;
    return json::parse(testing::read_bytes(verb.path("report.json")));
  }
  void write_run(const std::string& name, const std::string& metrics) const {
    std::filesystem::create_directories(verb.path(name));
    testing::write_bytes(train::metrics_path(verb.path(name)), metrics);
  }

  const std::string line = "{\"step\":1,\"loss\":3.5}\n";
  TrainVerb verb;
};

TEST_F(CompareVerbTest, Report_TrainedRuns_ShowsWhatTrainingRecorded) {
  ASSERT_EQ(verb.train("plain", {"--eval-every", "5"}).status, 0);
  ASSERT_EQ(verb.train("gated", {"--gate", "headwise", "--steps", "10"}).status, 0);
  const json all = report({"plain", "gated"});
  const json &plain = all.at("runs").at(0), &gated = all.at("runs").at(1);
  EXPECT_EQ(plain.at("name"), verb.path("plain"));
  EXPECT_EQ(plain.at("steps"), 20);
  EXPECT_EQ(gated.at("steps"), 10);
  EXPECT_EQ(plain.at("curves").at("first_token_attention").at("steps"), json({5, 10, 15, 20}));
  EXPECT_FALSE(plain.at("curves").contains("gate_mean"));
  EXPECT_TRUE(gated.at("curves").contains("first_token_attention_gated"));
  const std::string metrics = testing::read_bytes(train::metrics_path(verb.path("plain")));
  const json last = json::parse(metrics.substr(metrics.rfind("{\"step\"")));
  EXPECT_EQ(plain.at("last").at("loss"), last.at("loss"));
  for (const auto& [key, value] : last.at("eval").items()) {
    if (!value.is_number() || key == "tokens" || key == "seq_len") continue;
    EXPECT_EQ(plain.at("last").at(key), value) << key;
  }

  const Outcome text = compare({"plain", "gated"});
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("activation"), std::string::npos);
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos) << "no colours";
}

TEST_F(CompareVerbTest, Page_Written_HoldsTheReport) {
  const std::string name = "<b>&amp; \xc3\xa9 <script>";
  write_run(name, line);
  const Outcome outcome = compare({name}, {"--out", verb.path("page.html"), "--json-out", verb.path("page.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string page = testing::read_bytes(verb.path("page.html"));
  const std::string start = "<script id=\"report\" type=\"application/json\">";
  const std::size_t begin = page.find(start);
  ASSERT_NE(begin, std::string::npos);
  const std::string text = page.substr(begin + start.size(), page.find("</script>", begin) - begin - start.size());
  EXPECT_EQ(json::parse(text), json::parse(testing::read_bytes(verb.path("page.json"))));
  EXPECT_EQ(json::parse(text).at("runs").at(0).at("name"), verb.path(name));
  EXPECT_EQ(page.find(name), std::string::npos) << "a name is no markup";
  EXPECT_EQ(page.find("@PAGE"), std::string::npos);
  EXPECT_EQ(page.find("@REPORT"), std::string::npos);
  for (const char* fetching : {"href=\"http", "src=", "@import", "url(", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(page.find(fetching), std::string::npos) << "a page needs no network: " << fetching;
  }
}

TEST_F(CompareVerbTest, Json_AsAFlag_PrintsTheReport) {
  write_run("run", line);
  const json written = report({"run"});
  const Outcome flag = testing::headgate({"compare", "--json", verb.path("run")});
  EXPECT_EQ(flag.status, 0) << flag.err;
  EXPECT_EQ(flag.err, "") << "a directory is a RUN";
  EXPECT_EQ(json::parse(flag.out), written);
}

TEST_F(CompareVerbTest, Log_LineCutOff_IsReported) {
  write_run("killed", line + "{\"step\":2,\"lo");
  const Outcome outcome = compare({"killed"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("cut off"), std::string::npos) << outcome.out;
}

TEST_F(CompareVerbTest, Arguments_Bad_AreRefusedOnOneLineAndWriteNothing) {
  const std::string page = verb.path("page.html"), good = "good";
  write_run(good, line);
  const auto refused = [&](const std::string& metrics, const std::string& why) {
    write_run("bad", metrics);
    expect_refused(compare({good, "bad"}, {"--out", page, "--json-out", verb.path("j")}), "compare", why);
    EXPECT_FALSE(std::filesystem::exists(page));
    EXPECT_FALSE(std::filesystem::exists(verb.path("j")));
  };
  refused("", "bad/metrics.jsonl: holds no record");
  refused(line + "{\"step\":2,\"loss\":\"low\"}\n", "bad/metrics.jsonl: line 2: 'loss' is \"low\"");
  refused(line + "epoch 2\n", "line 2: not JSON");
  expect_refused(testing::headgate({"compare"}), "compare", "RUN");
  expect_refused(compare({"nothing"}), "compare", "nothing: does not exist");
  std::filesystem::create_directories(verb.path("empty"));
  expect_refused(compare({"empty"}), "compare", "empty: not a run: it holds no metrics.jsonl");
  expect_refused(compare({good}, {"--points", "3"}), "compare", "--points");
  expect_refused(testing::headgate({"compare", good, "--points", "4"}), "compare",
                 "--points needs --out, --json or --json-out");
}

TEST_F(CompareVerbTest, Output_IsAFileRead_IsRefused) {
  write_run("run", line);
  const std::string metrics = train::metrics_path(verb.path("run"));
  expect_refused(compare({"run"}, {"--out", metrics}), "compare", "would overwrite");
  expect_refused(compare({"run"}, {"--json-out", verb.path("run/../run/metrics.jsonl")}), "compare", "would overwrite");
  expect_refused(compare({"run"}, {"--out", verb.path("same"), "--json-out", verb.path("run/../same")}), "compare",
                 "one file");
  expect_refused(compare({"run"}, {"--out", verb.path("run")}), "compare", "run");
  expect_refused(compare({"run"}, {"--out", verb.path("no/page.html")}), "compare", "page.html");
  EXPECT_EQ(testing::read_bytes(metrics), line);
  EXPECT_FALSE(std::filesystem::exists(verb.path("same")));
}

}  // namespace
}  // namespace headgate
