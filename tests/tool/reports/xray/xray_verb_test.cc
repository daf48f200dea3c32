// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/decoder/parameters.hpp"
#include "models/families/model_file.hpp"
#include "tool/cli/small_verbs.hpp"
#include "tool/reports/xray/decoded.hpp"
#include "tool/reports/xray/report.hpp"

namespace headgate {
namespace {

using nlohmann::json;
using testing::expect_refused;
using testing::Outcome;
using testing::TrainVerb;

class XrayVerbTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(verb.train("plain").status, 0);
    ASSERT_EQ(verb.train("gated", {"--gate", "headwise"}).status, 0);
  }

  Outcome xray(const std::vector<std::string>& runs, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"xray"};
    for (const std::string& run : runs) all.push_back(verb.path(run));
    all.insert(all.end(), {"--text", verb.text()});
    all.insert(all.end(), more.begin(), more.end());
    return testing::headgate(all);
  }
  json report(const std::vector<std::string>& runs, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--json-out", verb.path("report.json")});
    const Outcome outcome = xray(runs, more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find("headgate xray: wrote " + verb.path("report.json") + ": "), std::string::npos)
        << outcome.err;
    return json::parse(testing::read_bytes(verb.path("report.json")));
  }

  TrainVerb verb;
};

TEST_F(XrayVerbTest, Precision_Bf16_ChangesFiguresByRounding) {
  const json f32 = report({"gated"})["models"][0], bf16 = report({"gated"}, {"--precision", "bf16"})["models"][0];
  const double loss = f32["figures"]["loss_nats"], rounded = bf16["figures"]["loss_nats"];
  EXPECT_NE(rounded, loss);
  EXPECT_NEAR(rounded, loss, 0x1p-9 * loss) << "more than one rounding of the loss itself";
  EXPECT_NE(bf16["token_losses"], f32["token_losses"]);
  EXPECT_EQ(bf16["figures"].size(), f32["figures"].size());
}

TEST_F(XrayVerbTest, Json_AsAFlag_PrintsTheReport) {
  const json written = report({"gated"});
  const std::string run = verb.path("gated");
  const Outcome flag = testing::headgate({"xray", "--json", run, "--text", verb.text()});
  EXPECT_EQ(flag.status, 0) << flag.err;
  EXPECT_EQ(flag.err, "") << "a directory is a MODEL";
  EXPECT_EQ(json::parse(flag.out), written);
}

TEST_F(XrayVerbTest, Report_EveryHead_HasEveryFigure) {
  const json all = report({"plain", "gated"});
  ASSERT_EQ(all.at("models").size(), 2U);
  for (const json& model : all.at("models")) {
    const bool gated = model.at("gate") != "none";
    const auto tokens = model.at("tokens").get<std::size_t>();
    EXPECT_EQ(tokens, 16U) << "the positions that the model has";
    EXPECT_EQ(model.at("text").size(), tokens);
    EXPECT_EQ(model.at("token_losses").size(), tokens);
    ASSERT_EQ(model.at("heads").size(), 2U);
    ASSERT_EQ(model.at("layer_figures").size(), 2U);
    EXPECT_EQ(model.at("layer_text").at("received").size(), 2U);
    EXPECT_EQ(model.at("layer_text").at("gate").is_null(), !gated);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      ASSERT_EQ(model.at("heads")[layer].size(), 2U);
      for (std::size_t h = 0; h < 2; ++h) {
        const json& head = model.at("heads")[layer][h];
        const std::size_t cells = model.at("map_size").get<std::size_t>();
        EXPECT_EQ(xray::decoded(head.at("map")).size(), cells * (cells + 1) / 2);
        EXPECT_EQ(xray::decoded(head.at("received")).size(), tokens);
        EXPECT_EQ(head.at("gate").is_null(), !gated);
        EXPECT_EQ(head.at("gate_histogram").is_null(), !gated);
        const json& figures = model.at("head_figures")[layer][h];
        for (const char* key : {"first_token_attention", "attention_entropy", "value_output_rank", "written_rank"}) {
          EXPECT_TRUE(figures.at(key).is_number()) << key;
        }
        EXPECT_EQ(figures.at("gate_mean").is_null(), !gated);
      }
    }
    for (const json& figure : all.at("figures")) {
      const std::string key = figure.at("key");
      const bool known = model.at("figures").contains(key) || model.at("head_figures")[0][0].contains(key);
      EXPECT_TRUE(known) << key;
      EXPECT_TRUE(figure.at("sentence").get<std::string>().ends_with('.')) << key << " has no sentence for people";
    }
  }
}

TEST_F(XrayVerbTest, Figures_Shares_LieBetween0And1) {
  const json all = report({"plain", "gated"});
  std::set<std::string> shares;
  for (const json& figure : all.at("figures")) {
    if (figure.at("share").get<bool>()) shares.insert(figure.at("key"));
  }
  EXPECT_EQ(shares, (std::set<std::string>{"first_token_attention", "first_token_attention_gated",
                                           "first_token_attention_uniform", "gate_below_0.01", "gate_below_0.1",
                                           "gate_mean", "sink_rate"}));
  const auto expect_shares = [&](const json& figures) {
    for (const std::string& key : shares) {
      const json value = figures.value(key, json());
      EXPECT_TRUE(value.is_null() || (value >= 0.0 && value <= 1.0)) << key << ' ' << value;
    }
  };
  for (const json& model : all.at("models")) {
    expect_shares(model.at("figures"));
    for (const json& layer : model.at("layer_figures")) expect_shares(layer);
    for (const json& layer : model.at("head_figures")) {
      for (const json& head : layer) expect_shares(head);
    }
  }
}

TEST_F(XrayVerbTest, Figures_OfTheModel_AreThoseOfEval) {
  const json model = report({"gated"}, {"--tokens", "12"}).at("models")[0];
  const Outcome outcome = verb.eval("gated", {"--tokens", "12", "--json", "--heads", "--metrics", "all"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json eval = json::parse(outcome.out);
  const std::set<std::string> collected{"mean_distance", "value_output_rank", "written_rank"};
  for (const auto& [key, value] : model.at("figures").items()) {
    if (collected.contains(key)) continue;
    EXPECT_EQ(value, eval.at(key)) << key;
  }
  for (const std::string& key : collected) {  // the mean over heads, of layers and of the model
    double all = 0.0;
    for (std::size_t layer = 0; layer < 2; ++layer) {
      double sum = 0.0;
      for (std::size_t h = 0; h < 2; ++h) sum += model.at("head_figures")[layer][h].at(key).get<double>();
      EXPECT_NEAR(model.at("layer_figures")[layer].at(key).get<double>(), sum / 2.0, 1e-9) << key;
      all += sum;
    }
    EXPECT_NEAR(model.at("figures").at(key).get<double>(), all / 4.0, 1e-9) << key;
  }
  for (std::size_t h = 0; h < 2; ++h) {
    for (const auto& [key, value] : eval.at("layers")[1].at("heads")[h].items()) {
      if (key == "sink_attention") {  // left out of the X-ray of models without sinks
        EXPECT_TRUE(value.is_null());
        continue;
      }
      EXPECT_EQ(model.at("head_figures")[1][h].at(key), value) << key;
    }
  }
}

TEST_F(XrayVerbTest, Page_Written_HoldsTheReport) {
  testing::write_bytes(verb.text(), "</script><b>&\xc3\xa9" + testing::prose(100));
  const Outcome outcome = xray({"gated"}, {"--out", verb.path("page.html"), "--json-out", verb.path("page.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string page = testing::read_bytes(verb.path("page.html"));
  const std::string start = "<script id=\"report\" type=\"application/json\">";
  const std::size_t begin = page.find(start);
  ASSERT_NE(begin, std::string::npos);
  const std::size_t end = page.find("</script>", begin);
  ASSERT_NE(end, std::string::npos);
  const std::string text = page.substr(begin + start.size(), end - begin - start.size());
  EXPECT_EQ(json::parse(text), json::parse(testing::read_bytes(verb.path("page.json"))));
  EXPECT_EQ(page.find("@PAGE"), std::string::npos);
  EXPECT_EQ(page.find("@REPORT"), std::string::npos);
  for (const char* fetching : {"href=\"http", "src=", "@import", "url(", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(page.find(fetching), std::string::npos) << "a page needs no network: " << fetching;
  }
}

TEST_F(XrayVerbTest, Text_WithoutAPage_PrintsTheMainFigures) {
  const Outcome outcome = xray({"plain", "gated"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("first_token_attention"), std::string::npos);
  EXPECT_NE(outcome.out.find("gate_mean, 0 to 1"), std::string::npos) << "maps have the names of figures";
  EXPECT_NE(xray({"gated"}).out.find("gate_mean  "), std::string::npos);
  EXPECT_EQ(xray({"plain"}).out.find("gate_mean"), std::string::npos) << "no row of a gate that no model has";
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << "no colours in a pipe";
}

TEST_F(XrayVerbTest, Verdict_OfEachModel_IsTheSameEverywhere) {
  const Outcome page =
      xray({"plain", "gated"}, {"--out", verb.path("page.html"), "--json-out", verb.path("page.json")});
  ASSERT_EQ(page.status, 0) << page.err;
  const auto in_one_line = [](const std::string& text) {
    std::istringstream words(text);
    std::string out;
    for (std::string word; words >> word;) out += (out.empty() ? "" : " ") + word;
    return out;
  };
  const std::string printed = in_one_line(page.out), shown = in_one_line(xray({"plain", "gated"}).out);
  std::string wanted;
  const json report = json::parse(testing::read_bytes(verb.path("page.json")));
  for (const json& model : report.at("models")) {
    const std::string verdict = model.at("verdict");
    wanted += (wanted.empty() ? "" : " ") + model.at("name").get<std::string>() + ": " + verdict;
    EXPECT_TRUE(verdict.starts_with("No sinks: no head gives more than 30% of its attention to the first token. It"))
        << verdict;
    const json& largest = model.at("largest_activation");
    double most = 0.0;
    for (const json& layer : model.at("layer_figures")) {
      most = std::max(most, layer.at("massive_activation").get<double>());
    }
    EXPECT_NEAR(largest.at("value").get<double>(), most, 1e-4);
    EXPECT_LT(largest.at("layer"), 2);
    EXPECT_LT(largest.at("token"), 16);
    EXPECT_LT(largest.at("channel"), 16);
  }
  EXPECT_EQ(printed, wanted) << "with a page, the verdicts alone";
  EXPECT_TRUE(shown.starts_with(wanted)) << shown;
  EXPECT_EQ(xray({"plain"}, {"--out", verb.path("page.html"), "--json"}).out.front(), '{') << "JSON alone";
}

TEST_F(XrayVerbTest, Overrides_HeadsOrLayers_AreComputed) {
  const std::string file = verb.path("report.json");
  for (const std::string of : {"heads", "layers"}) {
    const Outcome outcome = xray({"plain", "gated"}, {"--override", of, "--override-tokens", "8", "--json-out", file});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const json all = json::parse(testing::read_bytes(file));
    for (const json& model : all.at("models")) {
      const bool gated = model.at("gate") != "none";
      const json& overrides = model.at("overrides");
      EXPECT_EQ(overrides.at("of"), of);
      EXPECT_EQ(overrides.at("tokens"), 8);
      EXPECT_GT(overrides.at("loss"), 0.0);
      const int parts = of == "heads" ? 4 : 2;
      EXPECT_EQ(overrides.at("passes"), 1 + parts * (gated ? 3 : 1));
      const std::string plan = overrides.at("passes").dump() + " passes over 8 tokens";
      EXPECT_NE(outcome.err.find(plan), std::string::npos) << outcome.err;
      ASSERT_EQ(overrides.at("kinds").size(), xray::kOverrides.size());
      for (const json& kind : overrides.at("kinds")) {
        const bool has = gated || kind.at("word") == "closed";
        EXPECT_EQ(kind.at("left_out").is_null(), has);
        const std::string key = kind.at("figure");
        const json& row = of == "heads" ? model.at("head_figures")[1][1] : model.at("layer_figures")[1];
        EXPECT_EQ(row.at(key).is_number(), has) << key;
        const auto same = [&](const json& figure) { return figure.at("key") == key; };
        EXPECT_TRUE(std::any_of(all.at("figures").begin(), all.at("figures").end(), same)) << key;
      }
    }
  }
}

TEST_F(XrayVerbTest, Overrides_MoreTokensThanThereAre_TakeThoseThereAre) {
  const std::string file = verb.path("report.json");
  ASSERT_EQ(xray({"gated"}, {"--tokens", "12", "--override", "layers", "--json-out", file}).status, 0);
  const json model = json::parse(testing::read_bytes(file)).at("models")[0];
  EXPECT_EQ(model.at("overrides").at("tokens"), 12);
  EXPECT_NEAR(model.at("overrides").at("loss").get<double>(), model.at("figures").at("loss_nats").get<double>(), 1e-6);
  EXPECT_TRUE(report({"gated"}).at("models")[0].at("overrides").is_null()) << "it costs, so it is off";
}

TEST_F(XrayVerbTest, Text_Overrides_PrintsWhatHeadsAreWorth) {
  for (const std::string of : {"heads", "layers"}) {
    const Outcome outcome = xray({"plain", "gated"}, {"--override", of});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("with overrides of " + of), std::string::npos);
    EXPECT_NE(outcome.out.find("left out: the model has no gate"), std::string::npos);
    for (const xray::OverrideRow& row : xray::kOverrides) {
      EXPECT_NE(outcome.out.find(row.word), std::string::npos) << row.word;
    }
  }
}

TEST_F(XrayVerbTest, Figures_WithoutAModel_AreListed) {
  const Outcome outcome = testing::headgate({"xray", "--list"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const metrics::Metric* metric : xray::xray_metrics()) {
    EXPECT_NE(outcome.out.find(metric->definition), std::string::npos) << metric->name;
  }
  for (const xray::OverrideRow& row : xray::kOverrides) {
    EXPECT_NE(outcome.out.find(row.figure.meaning), std::string::npos) << row.word;
  }
  const json list = json::parse(testing::headgate({"xray", "--list", "--json"}).out);
  for (const json& figure : list) {
    const std::string line = figure.at("name").get<std::string>();
    EXPECT_NE(("\n" + outcome.out).find("\n" + line), std::string::npos) << line;
    EXPECT_NE(outcome.out.find(figure.at("definition").get<std::string>()), std::string::npos) << line;
  }
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 2 * std::ssize(list));
}

TEST_F(XrayVerbTest, TokenIds_InPlaceOfText_GiveTheSameFigures) {
  const std::string start = testing::read_bytes(verb.text()).substr(0, 16);
  verb.write_ids(std::vector<std::int32_t>(start.begin(), start.end()));
  testing::write_bytes(verb.path("start"), start);
  const std::string out = verb.path("out.json");
  const auto figures = [&](const std::vector<std::string>& source) {
    std::vector<std::string> command{"xray", verb.path("gated"), "--json-out", out};
    command.insert(command.end(), source.begin(), source.end());
    const Outcome outcome = testing::headgate(command);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const json model = json::parse(testing::read_bytes(out)).at("models").at(0);
    return std::pair(model.at("figures").at("loss_nats"), model.at("text"));
  };
  EXPECT_EQ(figures({"--token-ids", verb.path("ids.npy")}), figures({"--text", verb.path("start")}));
  expect_refused(testing::headgate({"xray", verb.path("gated"), "--text", verb.text(), "--token-ids", out}), "xray",
                 "--text and --token-ids are two inputs; give one of them");
  expect_refused(testing::headgate({"xray", verb.path("gated")}), "xray", "one of --text and --token-ids is required");
}

TEST_F(XrayVerbTest, Option_WithoutUse_IsRefused) {
  expect_refused(testing::headgate({"xray", verb.path("gated"), "--text", verb.text(), "--map", "8"}), "xray",
                 "--map needs --out, --json or --json-out");
  for (const char* option : {"--out=page.html", "--text=a", "--token-ids=a.npy", "--tokens=8", "--map=8",
                             "--override=heads", "--from=a.json", "model"}) {
    expect_refused(testing::headgate({"xray", "--list", option}), "xray", " excludes ");
  }
}

TEST_F(XrayVerbTest, Include_FilesOfADirectory_AreThoseThatMatch) {
  std::filesystem::create_directory(verb.path("texts"));
  testing::write_bytes(verb.path("texts/a.py"), "not of the text ");
  testing::write_bytes(verb.path("texts/b.txt"), "all of the text");
  const auto tokens = [&](const std::vector<std::string>& source) {
    std::vector<std::string> command{"xray", verb.path("gated"), "--json"};
    command.insert(command.end(), source.begin(), source.end());
    const Outcome outcome = testing::headgate(command);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out).at("models").at(0).at("text");
  };
  const json included = tokens({"--text", verb.path("texts"), "--include", "*.txt"});
  EXPECT_EQ(included, tokens({"--text", verb.path("texts/b.txt")}));
  EXPECT_NE(included, tokens({"--text", verb.path("texts")}));
  expect_refused(testing::headgate({"xray", verb.path("gated"), "--token-ids", "ids.npy", "--include", "*.txt"}),
                 "xray", "--include");
}

/// Parts change rounding alone, that of bytes among it.
TEST_F(XrayVerbTest, Part_ShorterThanTheText_HasTheSameReport) {
  const json wanted = report({"gated"}, {"--override", "heads"}),
             got = report({"gated"}, {"--part", "5", "--override", "heads"});
  const json &one = wanted.at("models")[0], &other = got.at("models")[0];
  for (const char* of : {"figures", "layer_figures", "head_figures"}) {
    const json a = one.at(of).flatten(), b = other.at(of).flatten();
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [key, value] : a.items()) {
      ASSERT_EQ(b.at(key).is_null(), value.is_null()) << key;
      if (value.is_null()) continue;
      EXPECT_NEAR(b.at(key).get<double>(), value.get<double>(), 1e-3) << key;
    }
  }
  EXPECT_EQ(other.at("overrides"), one.at("overrides"));
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t h = 0; h < 2; ++h) {
      const json &a = one.at("heads")[layer][h], &b = other.at("heads")[layer][h];
      EXPECT_EQ(b.at("gate_histogram"), a.at("gate_histogram"));
      for (const char* text : {"map", "received", "gate"}) {
        const std::vector<std::uint8_t> x = xray::decoded(a.at(text)), y = xray::decoded(b.at(text));
        ASSERT_EQ(x.size(), y.size());
        for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(int{x[i]}, int{y[i]}, 1) << text;
      }
    }
  }
}

/// Writes a model whose layers differ, and ids for it; it reads them beside one whose layers are alike.
TEST_F(XrayVerbTest, Hybrid_BesideAnother_HasBothKindsOfLayers) {
  models::DecoderConfig config;
  config.vocab = 256;
  config.dim = 8;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.ffn = 8;
  config.seq_len = 16;
  using enum models::LayerType;
  config.layer_types = {linear_attention, sliding_attention, full_attention};
  config.window = 4;
  config.linear = {.key_heads = 1, .value_heads = 3, .key_dim = 4, .value_dim = 4, .kernel = 2};
  config.gate = layers::parse_gate("headwise");
  const models::ParameterTable table(config);
  std::vector<float> parameters(static_cast<std::size_t>(table.total()));
  models::initialise(parameters.data(), table, config, 1);
  models::write_model(verb.path("hybrid"), {config}, parameters, DType::f32);
  std::vector<std::int32_t> ids(16);
  std::iota(ids.begin(), ids.end(), 0);
  verb.write_ids(ids);
  const std::vector<std::string> command{
      "xray", verb.path("gated"), verb.path("hybrid"), "--token-ids", verb.path("ids.npy"), "--override", "heads"};
  std::vector<std::string> to_json = command;
  to_json.insert(to_json.end(), {"--json-out", verb.path("out.json")});
  ASSERT_EQ(testing::headgate(to_json).status, 0);
  const json models = json::parse(testing::read_bytes(verb.path("out.json"))).at("models");
  EXPECT_EQ(models[0].at("layer_types"), json({"full_attention", "full_attention"}));
  const json& hybrid = models[1];
  EXPECT_EQ(hybrid.at("layer_types"), json({"linear_attention", "sliding_attention", "full_attention"}));
  EXPECT_EQ(hybrid.at("heads")[0].size(), 3U);
  EXPECT_EQ(hybrid.at("heads")[1].size(), 4U);
  const json &linear = hybrid.at("layer_figures")[0], &sliding = hybrid.at("layer_figures")[1];
  EXPECT_TRUE(linear.at("first_token_attention").is_null());
  EXPECT_TRUE(sliding.at("first_token_attention").is_null());
  EXPECT_TRUE(hybrid.at("layer_figures")[2].at("first_token_attention").is_number());
  EXPECT_TRUE(linear.at("value_output_rank").is_null());
  for (const char* key : {"mean_decay", "half_life", "mean_beta", "output_gate_mean", "output_gate_below_0.1",
                          "hidden_first_token_share", "state_rank"}) {
    EXPECT_TRUE(linear.at(key).is_number()) << key;
    EXPECT_TRUE(hybrid.at("head_figures")[0][2].at(key).is_number()) << key;
    EXPECT_TRUE(sliding.at(key).is_null()) << key;
    EXPECT_FALSE(models[0].at("figures").contains(key)) << key;
  }
  EXPECT_TRUE(sliding.at("gate_mean").is_number());
  for (const json& layer : hybrid.at("layer_figures")) EXPECT_GT(layer.at("mean_distance"), 0.0);
  EXPECT_LT(sliding.at("mean_distance"), 3.0) << "inside its window";
  EXPECT_TRUE(hybrid.at("head_figures")[0][2].at("loss_change_at_mean_gate").is_number());
  EXPECT_TRUE(hybrid.at("head_figures")[0][2].at("loss_change_when_open").is_null());
  const Outcome saved = testing::headgate({"xray", "--from", verb.path("out.json"), "--json"});
  EXPECT_EQ(saved.status, 0) << saved.err;
  EXPECT_EQ(json::parse(saved.out).at("models"), models);

  const Outcome text = testing::headgate(command);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("hybrid: layers, and how many tokens back they look on average\n"), std::string::npos);
  EXPECT_EQ(text.out.find("gated: layers"), std::string::npos) << "its layers are alike";
  for (const char* row : {" linear_attention ", " sliding_attention ", " full_attention "}) {
    EXPECT_NE(text.out.find(row), std::string::npos) << row << text.out;
  }
  const Outcome eval = testing::headgate(
      {"eval", verb.path("hybrid"), verb.path("gated"), "--token-ids", verb.path("ids.npy"), "--metrics", "all"});
  EXPECT_EQ(eval.status, 0) << eval.err;
  EXPECT_EQ(eval.out.find("nan"), std::string::npos) << eval.out;
  const Outcome heads =
      testing::headgate({"eval", verb.path("hybrid"), "--token-ids", verb.path("ids.npy"), "--heads"});
  EXPECT_EQ(heads.status, 0) << heads.err;
}

/// Returns the report in a page.
json report_in(const std::string& page) {
  const std::string start = "<script id=\"report\" type=\"application/json\">";
  const std::size_t begin = page.find(start) + start.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST_F(XrayVerbTest, From_SavedReports_JoinsThemOnAPage) {
  const std::string plain = verb.path("plain.json"), gated = verb.path("gated.json"), page = verb.path("both.html");
  const json first = report({"plain"}, {"--tokens", "64"});
  std::filesystem::rename(verb.path("report.json"), plain);
  const json second = report({"gated"});
  std::filesystem::rename(verb.path("report.json"), gated);
  const Outcome outcome = testing::headgate({"xray", "--from", plain, gated, "--out", page});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* name : {"plain:", "gated:"}) EXPECT_NE(outcome.out.find(name), std::string::npos) << outcome.out;
  const json joined = report_in(testing::read_bytes(page));
  EXPECT_EQ(joined.at("version"), 1);
  EXPECT_EQ(joined.at("text"), first.at("text"));
  EXPECT_EQ(joined.at("models"), json::array({first.at("models")[0], second.at("models")[0]}));
  std::set<std::string> keys;
  for (const json& figure : joined.at("figures")) {
    EXPECT_TRUE(keys.insert(figure.at("key").get<std::string>()).second) << figure;
  }
  EXPECT_EQ(keys.count("gate_mean"), 1U) << "a figure of the second report alone";
  const Outcome one = testing::headgate({"xray", "--from", gated, "--json"});
  EXPECT_EQ(json::parse(one.out), second) << "of one report, the same";
}

TEST_F(XrayVerbTest, Arguments_Bad_AreRefusedOnOneLineAndWriteNothing) {
  expect_refused(testing::headgate({"xray"}), "xray", "MODEL");
  expect_refused(testing::headgate({"xray", verb.path("plain")}), "xray", "--text");
  expect_refused(xray({"nothing"}), "xray", "nothing");
  expect_refused(xray({"plain"}, {"--tokens", "1"}), "xray", "--tokens");
  expect_refused(xray({"plain"}, {"--part", "0"}), "xray", "--part");
  expect_refused(xray({"plain"}, {"--part", "-1"}), "xray", "--part");
  expect_refused(xray({"plain"}, {"--override", "head"}), "xray", "heads, layers");
  expect_refused(xray({"plain"}, {"--override-tokens", "8"}), "xray", "--override-tokens");
  expect_refused(xray({"plain"}, {"--override", "heads", "--override-tokens", "1"}), "xray", "--override-tokens");
  const std::string file = verb.path("same");
  expect_refused(xray({"plain"}, {"--out", file, "--json-out", file}), "xray", "same");
  expect_refused(xray({"plain"}, {"--out", file, "--json-out", verb.path("plain/../same")}), "xray", "one file");
  const std::string text = testing::read_bytes(verb.text());
  expect_refused(xray({"plain"}, {"--json-out", verb.path("plain/../text")}), "xray", "would overwrite");
  EXPECT_EQ(testing::read_bytes(verb.text()), text);
  EXPECT_FALSE(std::filesystem::exists(file));
  expect_refused(xray({"plain"}, {"--out", verb.path("no/page.html")}), "xray", "page.html");
}

}  // namespace
}  // namespace headgate
