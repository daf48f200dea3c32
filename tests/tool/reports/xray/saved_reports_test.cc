// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/saved_reports.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/io/file_error.hpp"
#include "tool/cli/small_verbs.hpp"

namespace headgate::xray {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::expect_refused;
using testing::Outcome;

/// Saves the report of a model without a gate and of a gated one, with overrides.
class SavedReportTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    verb = new testing::TrainVerb;
    std::vector<std::string> command{"xray", "--text", verb->text(), "--override", "heads", "--json-out", file()};
    for (const std::string gate : {"none", "headwise"}) {
      ASSERT_EQ(verb->train(gate, {"--gate", gate, "--steps", "1"}).status, 0);
      command.insert(command.begin() + 1, verb->path(gate));
    }
    ASSERT_EQ(testing::headgate(command).status, 0);
    saved = new json(json::parse(testing::read_bytes(file())));
    ASSERT_EQ(saved->at("models").size(), 2U);
  }
  static void TearDownTestSuite() {
    delete saved;
    delete verb;
  }

  static std::string file() { return verb->path("report.json"); }
  static const json& good() { return *saved; }

  static testing::TrainVerb* verb;
  static json* saved;
};

testing::TrainVerb* SavedReportTest::verb = nullptr;
json* SavedReportTest::saved = nullptr;

/// Returns why a report is refused; an empty string if it is read.
std::string refusal(const json& report) {
  try {
    parse_report("FILE", report.dump());
    return "";
  } catch (const io::FileError& error) {
    return error.what();
  }
}

using Visit = std::function<void(const json::json_pointer& pointer, const std::string& name)>;

void for_each_place_below(const json& value, const json::json_pointer& pointer, const std::string& name,
                          const Visit& visit) {
  const auto go_on = [&](const json& child, const json::json_pointer& there, const std::string& called) {
    visit(there, called);
    for_each_place_below(child, there, called, visit);
  };
  if (value.is_object()) {
    for (const auto& [key, child] : value.items())
      go_on(child, pointer / key, name.empty() ? key : fmt::format("{}.{}", name, key));
  }
  if (value.is_array() && !value.empty()) {
    for (const std::size_t n : std::set<std::size_t>{0, value.size() - 1}) {
      go_on(value[n], pointer / n, fmt::format("{}[{}]", name, n));
    }
  }
}

/// Calls visit() with the pointer and the name of each value of a report; of lists for the first and the last entry.
void for_each_place(const json& report, const Visit& visit) {
  for_each_place_below(report, json::json_pointer(), "", visit);
}

/// Replaces the indices in a name: "models[].heads[][].map".
std::string without_indices(std::string name) {
  std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
  return name;
}

/// Whether the page does not read the value, nor any value in it.
bool is_not_read(const std::string& part) {
  const auto below = [&](const std::string& other) { return part.starts_with("models[]." + other); };
  return below("largest_activation") || below("overrides.of") || below("overrides.passes") ||
         below("overrides.kinds[].writes");
}

/// Whether `part` is a figure's value. A report has any figures.
bool is_figure(const std::string& part) {
  const std::size_t figures = part.find("figures");
  return part.starts_with("models") && figures != std::string::npos && part.find('.', figures) != std::string::npos;
}

bool may_be_null(const std::string& part) {
  const std::set<std::string> parts{"models[].parameters",
                                    "models[].kv_heads",
                                    "models[].overrides",
                                    "models[].overrides.loss",
                                    "models[].overrides.kinds[].left_out",
                                    "models[].token_losses[]",
                                    "models[].heads[][].gate",
                                    "models[].heads[][].gate_histogram",
                                    "models[].heads[][].top_keys[][]",
                                    "models[].heads[][].singular_values[]",
                                    "models[].layer_text.gate",
                                    "models[].layer_text.gate[]"};
  return is_figure(part) || parts.contains(part);
}

bool has_any_length(const std::string& part) {
  const std::set<std::string> lists{"figures", "models", "models[].overrides.kinds", "models[].heads[][].top_keys",
                                    "models[].heads[][].singular_values"};
  return lists.contains(part);
}

/// Whether `part` is a string of base64.
bool is_base64(const std::string& part) {
  const std::set<std::string> parts{"models[].heads[][].map", "models[].heads[][].received", "models[].heads[][].gate",
                                    "models[].layer_text.received[]", "models[].layer_text.gate[]"};
  return parts.contains(part);
}

TEST_F(SavedReportTest, Good_Parsed_KeepsEveryValue) {
  EXPECT_EQ(refusal(good()), "");
  EXPECT_EQ(json(parse_report("FILE", good().dump())), good());
  json more = good();
  more["models"][0]["new key"] = {1, 2};
  EXPECT_EQ(json(parse_report("FILE", more.dump())), more) << "a key of a later version";
}

TEST_F(SavedReportTest, EachKey_Missing_IsNamed) {
  std::size_t keys = 0, not_read = 0;
  for_each_place(good(), [&](const json::json_pointer& pointer, const std::string& name) {
    const json::json_pointer above = pointer.parent_pointer();
    if (!good().at(above).is_object()) return;
    const std::string& key = pointer.back();
    const std::string part = without_indices(name);
    json changed = good();
    changed.at(above).erase(key);
    const std::string what = refusal(changed);
    ++keys;
    if (is_not_read(part) || is_figure(part)) {
      EXPECT_EQ(what, "") << name;
      ++not_read;
      return;
    }
    const std::string place = name == key ? "the JSON" : name.substr(0, name.size() - key.size() - 1);
    EXPECT_EQ(what, "FILE: not a report that this headgate reads: " + place + " lacks " + key);
  });
  EXPECT_GT(keys, not_read + 50) << "keys that a report needs";
}

TEST_F(SavedReportTest, EachValue_OfAnotherType_IsNamed) {
  const std::vector<json> others{nullptr, true, -1.5, "?", json::array(), json::object()};
  for_each_place(good(), [&](const json::json_pointer& pointer, const std::string& name) {
    const std::string part = without_indices(name);
    for (const json& other : others) {
      const json& value = good().at(pointer);
      const bool same = value.is_null() || value.type_name() == std::string(other.type_name());
      if (same || (other.is_null() && may_be_null(part))) continue;
      json changed = good();
      changed[pointer] = other;
      const std::string what = refusal(changed);
      if (is_not_read(part)) {
        EXPECT_EQ(what, "") << name;
      } else {
        EXPECT_NE(what.find(": " + name + " is "), std::string::npos) << name << " is " << other << ": " << what;
        EXPECT_NE(what.find(" but must be "), std::string::npos) << what;
      }
    }
  });
}

TEST_F(SavedReportTest, EachNull_WhereOneIsAllowed_IsRead) {
  std::set<std::string> parts;
  for_each_place(good(), [&](const json::json_pointer& pointer, const std::string& name) {
    const std::string part = without_indices(name);
    if (!may_be_null(part) || (part.ends_with("top_keys[][]") && pointer.back() == "0")) return;
    json changed = good();
    changed[pointer] = nullptr;
    EXPECT_EQ(refusal(changed), "") << name;
    parts.insert(part);
  });
  EXPECT_TRUE(parts.contains("models[].overrides"));
  EXPECT_TRUE(parts.contains("models[].layer_text.gate[]"));
}

TEST_F(SavedReportTest, EachList_OfAnotherLength_IsNamed) {
  for_each_place(good(), [&](const json::json_pointer& pointer, const std::string& name) {
    const json& value = good().at(pointer);
    const std::string part = without_indices(name);
    if (!value.is_array()) return;
    std::vector<json> others{value, value, json::array()};
    others[0].push_back(value.back());
    others[1].erase(0);
    for (const json& other : others) {
      json changed = good();
      changed[pointer] = other;
      const std::string what = refusal(changed);
      if (has_any_length(part) && !(part == "models" && other.empty())) {
        EXPECT_EQ(what, "") << name;
      } else if (part == "models[].heads[]" && !other.empty()) {
        const std::size_t at = name.rfind('[');
        EXPECT_NE(what.find("head_figures" + name.substr(at) + " has 2 entries"), std::string::npos) << what;
      } else {
        EXPECT_NE(what.find(": " + name + " has " + std::to_string(other.size()) + " entries but must have "),
                  std::string::npos)
            << name << " of " << other.size() << ": " << what;
      }
    }
  });
}

TEST_F(SavedReportTest, EachBytes_OfAnotherLengthOrNoBase64_AreNamed) {
  std::set<std::string> parts;
  for_each_place(good(), [&](const json::json_pointer& pointer, const std::string& name) {
    const json& value = good().at(pointer);
    if (!is_base64(without_indices(name)) || !value.is_string()) return;
    parts.insert(without_indices(name));
    const auto said = [&](const std::string& text) {
      json changed = good();
      changed[pointer] = text;
      return refusal(changed);
    };
    const auto text = value.get<std::string>();
    for (const std::string& other : {"AAAA" + text, text.substr(4), std::string()}) {
      EXPECT_NE(said(other).find(": " + name + " has "), std::string::npos) << said(other);
    }
    for (const std::string& other : {"!" + text.substr(1), text + "A", "=" + text.substr(1), " " + text}) {
      EXPECT_NE(said(other).find(": " + name + " is \""), std::string::npos) << said(other);
    }
  });
  EXPECT_EQ(parts.size(), 5U);
}

TEST_F(SavedReportTest, Counts_OutOfRange_AreNamed) {
  const auto said = [&](const std::string& pointer, const json& value) {
    json changed = good();
    changed[json::json_pointer(pointer)] = value;
    return refusal(changed).substr(std::string("FILE: not a report that this headgate reads: ").size());
  };
  const std::string whole = " but must be a whole number of at least 0 and below 2^64";
  EXPECT_EQ(said("/models/1/dim", -1), "models[1].dim is -1" + whole);
  EXPECT_EQ(said("/models/1/dim", 0.5), "models[1].dim is 0.5" + whole);
  EXPECT_EQ(said("/models/0/parameters", 0x1p64),
            "models[0].parameters is 1.8446744073709552e+19" + whole + " or null");
  EXPECT_EQ(said("/models/0/heads/1/0/top_keys/0/0", 16),
            "models[0].heads[1][0].top_keys[0][0] is 16 but must be from 0 to 15, below tokens");
  EXPECT_EQ(said("/models/0/layers", 3), "models[0].layer_types has 2 entries but must have 3, one for each of layers");
  EXPECT_EQ(said("/models/0/layers", 0), "models[0].layers is 0 but must be from 1 to 1024");
  EXPECT_EQ(said("/models/0/tokens", 0), "models[0].tokens is 0 but must be at least 1");
  EXPECT_EQ(said("/models/0/tokens", 17).substr(0, 36), "models[0].heads[0][0].received has 1");
  EXPECT_EQ(said("/models/0/map_size", 0), "models[0].map_size is 0 but must be from 1 to 16, and no more than tokens");
  EXPECT_EQ(said("/models/0/map_size", 1025),
            "models[0].map_size is 1025 but must be from 1 to 16, and no more than tokens");
  EXPECT_EQ(said("/models/0/map_size", 15),
            "models[0].heads[0][0].map has 136 bytes but must have 120, the lower triangle of map_size");
  EXPECT_EQ(said("/models/0/layer_types/1", "attention"),
            "models[0].layer_types[1] is \"attention\" but must be a known layer type");
  EXPECT_EQ(said("/version", 2), "version is 2 but must be 1");
  EXPECT_EQ(said("/models/1/heads/0/1/map", nullptr),
            "models[1].heads[0][1].map is of type null but must be string of base64");
}

TEST_F(SavedReportTest, Report_OfManyTokens_HasAMapOf1024CellsAtMost) {
  constexpr std::size_t kTokens = 1100;
  const std::string byte_a_token = std::string((kTokens + 2) / 3 * 4 - 1, 'A') + "=";  // 1100 = 3 · 366 + 2
  const auto with_map_of = [&](std::size_t cells) {
    const std::size_t bytes = cells * (cells + 1) / 2, padding = (3 - bytes % 3) % 3;
    json changed = good();
    changed["models"].erase(1);
    json& model = changed["models"][0];
    model["tokens"] = kTokens;
    model["map_size"] = cells;
    model["text"] = json(kTokens, "a");
    model["token_losses"] = json(kTokens, nullptr);
    model["layer_text"] = {{"received", {byte_a_token, byte_a_token}}, {"gate", nullptr}};
    for (json& layer : model["heads"]) {
      for (json& head : layer) {
        head["map"] = std::string((bytes + padding) / 3 * 4 - padding, 'A') + std::string(padding, '=');
        head["received"] = byte_a_token;
        head["gate"] = nullptr;
      }
    }
    return refusal(changed);
  };
  EXPECT_EQ(with_map_of(1024), "");
  EXPECT_NE(with_map_of(1025).find("map_size is 1025 but must be from 1 to 1024"), std::string::npos);
}

TEST_F(SavedReportTest, Joined_NamesThatOccurAgain_AreNumbered) {
  const auto named = [&](const std::vector<std::string>& names) {
    ordered_json report = good();
    const ordered_json model = report["models"][0];
    report["models"] = ordered_json::array();
    for (const std::string& name : names) {
      report["models"].push_back(model);
      report["models"].back()["name"] = name;
    }
    return report;
  };
  const ordered_json joined =
      joined_reports({named({"a", "b"}), named({"a", "a (2)", "runs/a/"}), named({"runs/a/", "a"})});
  std::vector<std::string> names;
  for (const ordered_json& model : joined.at("models")) names.push_back(model.at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "a (2)", "a (2) (2)", "runs/a/", "runs/a (2)", "a (3)"}));
  EXPECT_EQ(joined.at("figures"), ordered_json(good().at("figures"))) << "each figure once";
  EXPECT_EQ(joined.at("text"), ordered_json(good().at("text"))) << "each text once";
}

TEST_F(SavedReportTest, From_OptionsOfARun_AreRefusedByName) {
  const std::string path = verb->path("headwise");
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{{"--text", verb->text()},
                                                                                       {"--token-ids", "ids.npy"},
                                                                                       {"--include", "*.txt"},
                                                                                       {"--tokens", "8"},
                                                                                       {"--part", "8"},
                                                                                       {"--precision", "bf16"},
                                                                                       {"--map", "8"},
                                                                                       {"--override", "heads"},
                                                                                       {"--list"}}) {
    std::vector<std::string> command{"xray", "--from", file()};
    command.insert(command.end(), options.begin(), options.end());
    const Outcome outcome = testing::headgate(command);
    expect_refused(outcome, "xray", " excludes ");
    expect_refused(outcome, "xray", options[0]);
    expect_refused(outcome, "xray", "--from");
  }
  expect_refused(testing::headgate({"xray", "--from", file(), "--override-tokens", "8"}), "xray", "--override-tokens");
  expect_refused(testing::headgate({"xray", path, "--from", file()}), "xray", "MODEL excludes --from");
}

TEST_F(SavedReportTest, From_NoReport_IsRefusedOnOneLine) {
  const std::string bad = verb->path("bad.json"), page = verb->path("page.html");
  const auto refused = [&](const std::string& text, const std::string& said) {
    testing::write_bytes(bad, text);
    expect_refused(testing::headgate({"xray", "--from", file(), bad, "--out", page}), "xray", bad + ": " + said);
    EXPECT_FALSE(std::filesystem::exists(page));
  };
  refused("{", "not JSON");
  refused("[]", "not a report that this headgate reads: the JSON is of type array but must be object");
  refused("{}", "not a report that this headgate reads: the JSON lacks version");
  json changed = good();
  changed["models"][1]["heads"][0][1]["map"] = 3;
  refused(changed.dump(), "not a report that this headgate reads: models[1].heads[0][1].map is 3 but must be string");
  expect_refused(testing::headgate({"xray", "--from", verb->path("nothing")}), "xray", "nothing");
  expect_refused(testing::headgate({"xray", "--from", file(), "--out", file()}), "xray", "would overwrite");
}

}  // namespace
}  // namespace headgate::xray
