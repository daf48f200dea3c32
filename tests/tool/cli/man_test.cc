// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/io/scratch.hpp"
#include "tool/cli/listed_options.hpp"
#include "tool/cli/tool.hpp"

// Checks that every verb has a manual page with every option, and that roff renders it without a warning.

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using testing::ListedOption;
using testing::Outcome;

/// Returns the text with each '-' behind a backslash, as in a page.
std::string with_minuses(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '-' ? std::string("\\-") : std::string(1, c);
  return out;
}

TEST(Man, Page_OfEveryVerb_NamesEveryOption) {
  for (const std::string& verb : testing::listed_verbs()) {
    const Outcome page = testing::headgate({"man", verb});
    EXPECT_EQ(page.status, 0) << page.err;
    for (const char* part : {".SH NAME\nheadgate\\-", ".SH SYNOPSIS\n", ".SH OPTIONS\n", ".SH EXIT STATUS\n"}) {
      EXPECT_NE(page.out.find(part), std::string::npos) << verb << " has no " << part;
    }
    for (const ListedOption& option : testing::listed_options(verb)) {
      std::string tag = "\\fB" + with_minuses(option.name) + "\\fR" + (option.has_value ? " \\fI" : "\n");
      if (!option.short_name.empty()) tag.insert(0, "\\fB" + with_minuses(option.short_name) + "\\fR, ");
      EXPECT_NE(page.out.find(".TP\n" + tag), std::string::npos) << verb << ' ' << tag;
    }
  }
}

TEST(Man, Pages_Listed_AreThoseOfTheVerbs) {
  std::string expected = "headgate\n";
  const std::string page = testing::headgate({"man"}).out;
  for (const std::string& verb : testing::listed_verbs()) {
    expected += "headgate-" + verb + '\n';
    EXPECT_NE(page.find(".BR headgate\\-" + verb + " (1)\n"), std::string::npos) << verb;
  }
  EXPECT_EQ(testing::headgate({"man", "--list"}).out, expected);
  expect_refused(testing::headgate({"man", "trian"}), "man", "no verb 'trian'; did you mean train?");
  for (const char* option : {"--list", "--json"}) {
    expect_refused(testing::headgate({"man", "train", option}), "man", "VERB excludes " + std::string(option));
  }
  expect_refused(testing::headgate({"man", "--list", "--json"}), "man", "--list excludes --json");
}

TEST(Man, Json_OfTheTool_HasEveryOption) {
  const auto tool = nlohmann::json::parse(testing::headgate({"man", "--json"}).out);
  std::vector<std::string> verbs;
  for (const auto& verb : tool.at("verbs")) {
    verbs.push_back(verb.at("name"));
    std::set<std::string> names;
    for (const auto& option : verb.at("options")) names.insert(option.at("names").begin(), option.at("names").end());
    for (const ListedOption& option : testing::listed_options(verbs.back())) {
      EXPECT_TRUE(names.contains(option.name)) << verbs.back() << ' ' << option.name;
    }
  }
  EXPECT_EQ(verbs, testing::listed_verbs());
}

TEST(Man, EveryPage_Rendered_HasNoWarnings) {
  std::vector<std::vector<std::string>> renderers;
  if (std::filesystem::exists("/usr/bin/groff")) {
    renderers.push_back({"/usr/bin/groff", "-man", "-Tutf8", "-ww", "-z"});
  }
  if (std::filesystem::exists("/usr/bin/mandoc")) renderers.push_back({"/usr/bin/mandoc", "-T", "lint", "-W", "error"});
  if (renderers.empty()) GTEST_SKIP() << "neither groff nor mandoc is installed";
  const testing::Scratch scratch;
  const std::string file = scratch / "page.1";
  std::vector<std::string> verbs = testing::listed_verbs();
  verbs.emplace_back();
  for (const std::string& verb : verbs) {
    std::vector<std::string> command{"man"};
    if (!verb.empty()) command.push_back(verb);
    testing::write_bytes(file, testing::headgate(command).out);
    for (std::vector<std::string> renderer : renderers) {
      renderer.push_back(file);
      const Outcome outcome = testing::run_program(renderer);
      EXPECT_EQ(outcome.status, 0) << verb;
      EXPECT_EQ(outcome.err + outcome.out, "") << verb;
    }
  }
}

}  // namespace
}  // namespace headgate
