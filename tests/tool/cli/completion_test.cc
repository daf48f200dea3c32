// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "models/io/scratch.hpp"
#include "tool/cli/listed_options.hpp"
#include "tool/cli/tool.hpp"
#include "tool/console/shell_word.hpp"

// Checks that every option of every verb is in the completions of each shell, and that bash completes them.

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using testing::ListedOption;
using testing::Outcome;

/// Holds the script of a shell in a file.
class Script {
 public:
  explicit Script(const std::string& shell) : path_(scratch_ / "script") {
    const Outcome outcome = testing::headgate({"completion", shell});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    text_ = outcome.out;
    testing::write_bytes(path_, text_);
  }
  const std::string& text() const { return text_; }
  const std::string& path() const { return path_; }

 private:
  testing::Scratch scratch_;
  std::string path_, text_;
};

/// Returns what bash offers for the last of `words`.
std::vector<std::string> bash_offers(const Script& script, const std::vector<std::string>& words) {
  std::string line = "COMP_WORDS=(";
  for (const std::string& word : words) line += ' ' + console::shell_word(word);
  const std::string command = "source " + script.path() + "; " + line +
                              "); COMP_CWORD=" + std::to_string(words.size() - 1) +
                              "; _headgate; printf '%s\\n' \"${COMPREPLY[@]}\"";
  const Outcome outcome = testing::run_program({"/bin/bash", "--norc", "-c", command});
  EXPECT_EQ(outcome.err, "");
  std::vector<std::string> out;
  std::istringstream lines(outcome.out);
  for (std::string each; std::getline(lines, each);) {
    if (!each.empty()) out.push_back(each);
  }
  return out;
}

/// Returns the lines of a script that are about `verb`: those from the first that is `begin` to the next that is `end`.
std::string section(const std::string& script, const std::string& begin, const std::string& end) {
  const std::size_t at = script.find(begin);
  if (at == std::string::npos) return "";
  return script.substr(at, script.find(end, at) - at);
}

/// Expects that the shell, where it is installed, parses the script.
void expect_parses(const Script& script, const std::string& shell, const std::string& option) {
  if (!std::filesystem::exists(shell)) return;
  const Outcome parsed = testing::run_program({shell, option, script.path()});
  EXPECT_EQ(parsed.status, 0) << parsed.err;
}

TEST(Completion, Bash_EveryVerb_OffersEveryOption) {
  const Script script("bash");
  expect_parses(script, "/bin/bash", "-n");
  std::size_t seen = 0;
  for (const std::string& verb : testing::listed_verbs()) {
    std::vector<std::string> expected{"-h", "--help"};
    for (const ListedOption& option : testing::listed_options(verb)) {
      expected.push_back(option.name);
      if (!option.short_name.empty()) expected.push_back(option.short_name);
    }
    std::vector<std::string> offered = bash_offers(script, {"headgate", verb, "-"});
    std::sort(expected.begin(), expected.end());
    std::sort(offered.begin(), offered.end());
    EXPECT_EQ(offered, expected) << verb;
    seen += offered.size();
  }
  EXPECT_GE(seen, 150U);
}

TEST(Completion, Bash_VerbsAndWords_AreCompleted) {
  using Words = std::vector<std::string>;
  const Script script("bash");
  EXPECT_EQ(bash_offers(script, {"headgate", ""}), testing::listed_verbs());
  EXPECT_EQ(bash_offers(script, {"headgate", "gen"}), Words{"generate"});
  EXPECT_EQ(bash_offers(script, {"headgate", "--ver"}), Words{"--version"});
  EXPECT_EQ(bash_offers(script, {"headgate", "attend", "--off"}), Words{"--off-by-one"});
  EXPECT_EQ(bash_offers(script, {"headgate", "convert", "--dtype", ""}), (Words{"f32", "f16", "bf16"}));
  EXPECT_EQ(bash_offers(script, {"headgate", "convert", "--dtype", "=", "b"}), Words{"bf16"});
  EXPECT_EQ(bash_offers(script, {"headgate", "convert", "--dtype", "="}), (Words{"f32", "f16", "bf16"}));
  EXPECT_EQ(bash_offers(script, {"headgate", "attend", "--gate-fn", "sigm"}).front(), "sigmoid");
  EXPECT_EQ(bash_offers(script, {"headgate", "demo", "--only", "w"}), Words{"worked"});
  EXPECT_EQ(bash_offers(script, {"headgate", "help", "gen"}), Words{"generate"});
  EXPECT_EQ(bash_offers(script, {"headgate", "completion", ""}), (Words{"bash", "zsh", "fish"}));
  EXPECT_EQ(bash_offers(script, {"headgate", "train", "--steps", ""}), Words{});
}

TEST(Completion, Bash_PathWanted_OffersFiles) {
  const Script script("bash");
  const testing::Scratch scratch;
  const std::string file = scratch / "a model.gguf";
  testing::write_bytes(file, "");
  const std::vector<std::string> expected{file};
  EXPECT_EQ(bash_offers(script, {"headgate", "generate", scratch / "a"}), expected);
  EXPECT_EQ(bash_offers(script, {"headgate", "attend", "--q", scratch / "a"}), expected);
  EXPECT_EQ(bash_offers(script, {"headgate", "train", "--data", scratch / "a"}), expected);
  EXPECT_EQ(bash_offers(script, {"headgate", "xray", "--json-out", "=", scratch / "a"}), expected);
}

TEST(Completion, Zsh_EveryVerb_HasEveryOption) {
  const Script script("zsh");
  for (const std::string& verb : testing::listed_verbs()) {
    const std::string part = section(script.text(), "\n    " + verb + ")\n", ";;\n");
    for (const ListedOption& option : testing::listed_options(verb)) {
      const std::string spec = "'*" + option.name + (option.has_value ? "=[" : "[");
      EXPECT_NE(part.find(spec), std::string::npos) << verb << ' ' << spec;
    }
  }
  EXPECT_NE(script.text().find(":TYPE:(f32 f16 bf16)'"), std::string::npos);
  expect_parses(script, "/usr/bin/zsh", "-n");
}

TEST(Completion, Fish_EveryVerb_HasEveryOption) {
  const Script script("fish");
  for (const std::string& verb : testing::listed_verbs()) {
    for (const ListedOption& option : testing::listed_options(verb)) {
      std::string line = "complete -c headgate -n '__headgate_verb_is " + verb + "'";
      if (!option.short_name.empty()) line += " -s " + option.short_name.substr(1);
      line += " -l " + option.name.substr(2) + (option.has_value ? " -" : " -d");
      EXPECT_NE(script.text().find(line), std::string::npos) << line;
    }
  }
  EXPECT_NE(script.text().find(" -l dtype -x -a 'f32 f16 bf16'"), std::string::npos);
  expect_parses(script, "/usr/bin/fish", "--no-execute");
}

TEST(Completion, Shell_Unknown_IsRefused) {
  expect_refused(testing::headgate({"completion", "tcsh"}), "completion", "'tcsh' is none of bash, zsh, fish");
  expect_refused(testing::headgate({"completion"}), "completion", "SHELL is required");
}

}  // namespace
}  // namespace headgate
