// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/runtime.hpp"
#include "headgate/version.h"
#include "library/core/attention_options.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "models/families/family.hpp"
#include "tool/attend/job.hpp"
#include "tool/attend/linear.hpp"
#include "tool/cli/listed_options.hpp"
#include "tool/cli/tool.hpp"

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;

const std::vector<std::string> kVerbs = {"explain", "attend",   "linear",  "train",    "eval",       "compare",
                                         "xray",    "generate", "convert", "tokenize", "verify",     "bench",
                                         "demo",    "info",     "doctor",  "help",     "completion", "man"};

TEST(Help, Help_OfTheTool_ListsEveryVerb) {
  const Outcome help = testing::headgate({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_EQ(help.err, "");
  ASSERT_NE(help.out.find("\nVerbs:\n"), std::string::npos) << help.out;
  EXPECT_EQ(testing::listed_verbs(), kVerbs) << "kVerbs of this test has each verb, and the other tests walk it";
}

TEST(Help, Help_OfEveryVerb_IsPrinted) {
  for (const std::string& verb : kVerbs) {
    const Outcome help = testing::headgate({verb, "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_TRUE(help.out.starts_with("Usage: headgate " + verb)) << help.out;
    EXPECT_NE(help.out.find("\nExit status:\n"), std::string::npos) << verb;
    EXPECT_EQ(help.out.find("TEXT"), std::string::npos) << "an option without a word for its value: " << help.out;
  }
}

TEST(Help, HelpVerb_OfEveryVerb_IsThatOfTheOption) {
  for (const std::string& verb : kVerbs) {
    EXPECT_EQ(testing::headgate({"help", verb}).out, testing::headgate({verb, "--help"}).out);
  }
  EXPECT_EQ(testing::headgate({"help"}).out, testing::headgate({"--help"}).out);
  expect_refused(testing::headgate({"help", "trian"}), "help", "no verb 'trian'; did you mean train?");
}

/// Expects that the help of `verb` names these options and those of the rows of `Tables` and `kOptions`.
template <class Tables, const auto& kOptions>
void expect_options(const std::string& verb, std::vector<std::string> options, std::size_t more_than) {
  const std::string help = testing::headgate({verb, "--help"}).out;
  const auto add = [&options](std::string_view option, std::string_view type) {
    if (!option.empty()) options.push_back(std::string(option) + " " + std::string(type));
  };
  for (const auto& row : Tables::kInputs) add(row.file.option, row.file.name);
  for (const auto& row : Tables::kOutputs) add(row.file.option, row.file.name);
  for (const auto& row : Tables::kIncoming) add(row.file.option, row.file.name);
  for_each_row(kOptions, [&add](const auto& row) { add(row.text.option, row.text.type); });
  EXPECT_GT(options.size(), more_than);
  for (const std::string& option : options) {
    EXPECT_NE(help.find("\n  " + option), std::string::npos) << option;
  }
}

TEST(Help, Help_OfAttend_NamesEveryOption) {
  expect_options<attend::AttentionTables, kAttentionOptions>(
      "attend", {"--causal", "--window L,R", "--off-by-one", "--dtype TYPE", "-t, --threads N", "--grad-dir DIR"}, 30);
}

TEST(Help, Help_OfLinear_NamesEveryOption) {
  expect_options<attend::LinearTables, kLinearOptions>("linear", {"--dtype TYPE", "-t, --threads N", "--grad-dir DIR"},
                                                       15);
}

TEST(Help, Help_OfEveryVerb_FitsEightyColumns) {
  for (const std::string& verb : kVerbs) {
    std::istringstream lines(testing::headgate({verb, "--help"}).out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 82U) << verb << ": " << line;
  }
}

TEST(Help, Convert_Families_AreAllNamed) {
  std::string help = testing::headgate({"convert", "--help"}).out;
  std::replace(help.begin(), help.end(), '\n', ' ');
  for (const models::Family* family : models::families()) {
    for (const std::string_view name : {family->name, family->architecture}) {
      EXPECT_NE(help.find(name), std::string::npos) << name;
    }
  }
}

TEST(Help, Help_OfAnInputThatNeedsAnother_SaysSo) {
  const std::string help = testing::headgate({"attend", "--help"}).out;
  const std::size_t option = help.find("  --block-table "), next = help.find("\n  --", option + 1);
  EXPECT_NE(help.substr(option, next - option).find("--key-lengths"), std::string::npos) << help;
}

TEST(Help, Generate_KeysOfItsJson_AreListed) {
  EXPECT_NE(testing::headgate({"generate", "--help"}).out.find("\n  model     "), std::string::npos);
}

TEST(Help, Tool_WithoutArguments_PrintsItsHelp) {
  const Outcome outcome = testing::headgate({});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, testing::headgate({"--help"}).out);
}

TEST(Help, Usage_OfAVerbWithAModel_NamesIt) {
  const auto usage = [](const std::string& verb) {
    const std::string help = testing::headgate({verb, "--help"}).out;
    return help.substr(0, help.find('\n'));
  };
  EXPECT_EQ(usage("eval"), "Usage: headgate eval [OPTION]... MODEL...");
  EXPECT_EQ(usage("xray"), "Usage: headgate xray [OPTION]... [MODEL...]");
  EXPECT_EQ(usage("generate"), "Usage: headgate generate [OPTION]... MODEL");
  EXPECT_EQ(usage("convert"), "Usage: headgate convert [OPTION]... MODEL OUT");
  EXPECT_TRUE(usage("tokenize").ends_with(" [MODEL]")) << usage("tokenize");
}

TEST(Usage, Usage_Bad_IsOneLine) {
  expect_refused(testing::headgate({"frobnicate"}), "", "no verb 'frobnicate'");
  expect_refused(testing::headgate({"--frobnicate"}), "", "--frobnicate");
  expect_refused(testing::headgate({"info", "--frobnicate"}), "info", "--frobnicate");
  expect_refused(testing::headgate({"info", "surplus"}), "info", "surplus");
  expect_refused(testing::headgate({"bad\nverb\x1b[31m"}), "", "no verb 'bad verb [31m'");
}

TEST(Usage, Version_AskedFor_IsPrinted) {
  for (const char* option : {"--version", "-V"}) {
    const Outcome version = testing::headgate({option});
    EXPECT_EQ(version.status, 0);
    EXPECT_EQ(version.out, std::string("headgate ") + HEADGATE_VERSION + "\n");
  }
}

TEST(Usage, Output_Lost_IsReported) {
  // Some print more than a buffer takes.
  for (const char* command : {"info", "help train", "man", "man train", "completion bash", "bench --list", "--help"}) {
    const std::string line = testing::headgate_path() + ' ' + command + " >/dev/full";
    expect_refused(testing::run_program({"/bin/sh", "-c", line}), "", "cannot write to standard output");
  }
}

TEST(Info, Info_OfThisMachine_PrintsTheFacts) {
  const Outcome info = testing::headgate({"info"});
  EXPECT_EQ(info.status, 0);
  EXPECT_EQ(info.err, "");
  for (const char* fact : {"version ", "cpu ", "targets compiled ", "targets supported ", "target chosen ", "threads ",
                           "matrix products "}) {
    const std::size_t at = info.out.find(fact);
    ASSERT_NE(at, std::string::npos) << fact;
    EXPECT_TRUE(at == 0 || info.out[at - 1] == '\n') << fact;
  }
  EXPECT_NE(info.out.find(HEADGATE_VERSION), std::string::npos);
}

TEST(Info, Help_OfInfo_NamesEveryFactInItsOrder) {
  const std::string help = testing::headgate({"info", "--help"}).out;
  EXPECT_NE(help.find("the backends for attention"), std::string::npos) << help;
  std::size_t at = help.find("\nJSON output");
  const auto facts = nlohmann::ordered_json::parse(testing::headgate({"info", "--json"}).out);
  for (const auto& [key, value] : facts.items()) {
    const std::size_t next = help.find("\n  " + key + " ", at);
    ASSERT_NE(next, std::string::npos) << key << help;
    at = next;
  }
}

TEST(Info, Info_ForcedTarget_NamesIt) {
  for (const std::string& target : supported_targets()) {
    const Outcome info =
        testing::run_program({"/usr/bin/env", "HEADGATE_ISA=" + target, testing::headgate_path(), "info"});
    EXPECT_EQ(info.status, 0);
    EXPECT_NE(info.out.find("target chosen      " + target + "\n"), std::string::npos) << info.out;
  }
  expect_refused(testing::run_program({"/usr/bin/env", "HEADGATE_ISA=abacus", testing::headgate_path(), "info"}),
                 "info", "abacus");
}

TEST(Help, ShortOption_OfALetter_IsNoLongOptionToo) {
  for (const std::string& verb : testing::listed_verbs()) {
    std::set<std::string> letters;
    for (const testing::ListedOption& option : testing::listed_options(verb)) {
      for (const std::string& name : {option.short_name, option.name}) {
        const std::string word = name.substr(std::min(name.size(), name.find_first_not_of('-')));
        const bool is_new = word.size() != 1 || letters.insert(word).second;
        EXPECT_TRUE(is_new) << verb << ' ' << name;
      }
    }
  }
}

}  // namespace
}  // namespace headgate
