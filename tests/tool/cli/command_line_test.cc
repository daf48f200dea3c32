// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/io/scratch.hpp"
#include "tool/cli/tool.hpp"

// Checks what a command line refuses, with which words, and in which order.

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;
using nlohmann::json;

constexpr const char* kTooLarge = "99999999999999999999";

TEST(UnexpectedArgument, Option_Mistyped_ComesBeforeMissingOnes) {
  expect_refused(testing::headgate({"train", "--dat", "x"}), "train",
                 "unexpected arguments --dat x; did you mean --data? (see headgate train --help)");
  expect_refused(testing::headgate({"train", "--seq_length=8"}), "train",
                 "unexpected argument --seq_length=8; did you mean --seq-len?");
  expect_refused(testing::headgate({"tokenize", "--txt"}), "tokenize", "did you mean --text?");
  expect_refused(testing::headgate({"attend", "--gatefn", "silu"}), "attend", "did you mean --gate-fn?");
}

TEST(UnexpectedArgument, Arguments_SeveralUnexpected_AreNamedInTheirOrder) {
  expect_refused(testing::headgate({"info", "zeta", "--frobnicate", "alpha"}), "info",
                 "unexpected arguments zeta --frobnicate alpha (see");
  expect_refused(testing::headgate({"train", "--sedd", "1", "--layrs", "2", "--betas", "3"}), "train",
                 "unexpected arguments --sedd 1 --layrs 2 --betas 3; did you mean --seed, --layers and --beta2?");
}

TEST(UnexpectedArgument, Argument_NothingNear_IsNotGuessed) {
  for (const char* word : {"--frobnicate", "-z", "--", "---", "--=", "-", "surplus"}) {
    const Outcome outcome = testing::headgate({"info", word});
    EXPECT_EQ(outcome.err.find("did you mean"), std::string::npos) << outcome.err;
  }
}

TEST(UnknownVerb, Verb_Mistyped_IsGuessed) {
  expect_refused(testing::headgate({"trian"}), "", "no verb 'trian'; did you mean train? (see headgate --help)");
  expect_refused(testing::headgate({"evaluate"}), "", "no verb 'evaluate'; did you mean eval? (see headgate --help)");
  expect_refused(testing::headgate({"version"}), "", "no verb 'version'; did you mean --version?");
  expect_refused(testing::headgate({"chat", "m"}), "", "no verb 'chat'; did you mean generate --chat?");
  expect_refused(testing::headgate({"surplus", "info"}), "", "no verb 'surplus'");
}

TEST(RefusedValue, Values_SeveralBad_TheFirstIsNamed) {
  const std::string steps = "--steps: must be a whole number", seed = "--seed: must be a whole number";
  expect_refused(testing::headgate({"train", "--steps", "x", "--seed", "y"}), "train", steps);
  expect_refused(testing::headgate({"train", "--seed", "y", "--steps", "x"}), "train", seed);
  expect_refused(testing::headgate({"train", "--steps", "x", "--sedd", "1"}), "train", steps);
  expect_refused(testing::headgate({"train", "--sedd", "1", "--steps", "x"}), "train",
                 "unexpected arguments --sedd 1;");
  expect_refused(testing::headgate({"attend", "--precision", "half", "--dtype", "f8"}), "attend",
                 "--precision: 'half'");
  expect_refused(testing::headgate({"attend", "--dtype", "f8", "--precision", "half"}), "attend", "--dtype: 'f8'");
  expect_refused(testing::headgate({"convert", "--dtype", "f8", "in", "out"}), "convert",
                 "--dtype: 'f8' is none of f32, f16, bf16");
}

TEST(RefusedValue, Word_Mistyped_IsGuessed) {
  expect_refused(testing::headgate({"attend", "--gate-fn", "sigmod"}), "attend", "; did you mean sigmoid?");
  expect_refused(testing::headgate({"train", "--task", "bigram-backopy"}), "train", "; did you mean bigram-backcopy?");
  expect_refused(testing::headgate({"demo", "--only", "layers"}), "demo",
                 "--only: 'layers' is none of worked, layer, model, backcopy, text; did you mean layer?");
  expect_refused(testing::headgate({"convert", "in", "out", "--layout", "per-groups"}), "convert",
                 "; did you mean per_group?");
}

TEST(NumberOption, Number_BeyondItsType_IsRefusedWithTheRange) {
  const auto refused = [](const std::vector<std::string>& command, const std::string& reason) {
    expect_refused(testing::headgate(command), command.front(), reason);
  };
  refused({"attend", "--window-share", kTooLarge},
          std::string("--window-share: must be a whole number from 0 to 9223372036854775807, got ") + kTooLarge);
  refused({"train", "--seed", kTooLarge}, "--seed: must be a whole number from 0 to 18446744073709551615");
  refused({"train", "--seed", "-1"}, "--seed: must be a whole number from 0 to 18446744073709551615, got -1");
  refused({"eval", "run", "--tokens", kTooLarge}, "--tokens: must be a whole number from 1 to 1099511627776");
  refused({"bench", "--repeat", "4294967297"}, "--repeat: must be a whole number from 1 to 10000");
  refused({"explain", "--decimals", "-4294967292", "f"}, "--decimals: must be a whole number from 0 to 17");
  refused({"bench", "--repeat", "1e3"}, "--repeat: must be a whole number from 1 to 10000, got 1e3");
  refused({"bench", "--min-time", "nan"}, "--min-time: must be a number from 0 to 600, got nan");
  refused({"train", "--lr", "1e999"}, "--lr: must be a number that f64 holds, got 1e999");
}

/// Tests every option of `headgate VERB --help` whose value is a whole number, shown as N or K, or W of --window-share.
TEST(NumberOption, Number_WouldSaturateOrWrap_IsRefused) {
  int seen = 0;
  for (const char* verb :
       {"explain", "attend", "linear", "train", "eval", "compare", "xray", "generate", "verify", "bench"}) {
    const std::string help = testing::headgate({verb, "--help"}).out;
    for (std::size_t at = help.find("\n  --"); at != std::string::npos; at = help.find("\n  --", at + 1)) {
      const std::string line = help.substr(at + 3, help.find('\n', at + 1) - at - 3);
      const std::size_t blank = line.find(' ');
      if (blank == std::string::npos) continue;
      const std::string type = line.substr(blank + 1, line.find(' ', blank + 1) - blank - 1);
      const std::string name = line.substr(0, blank);
      const bool whole = type == "N" || type == "K" || type == "W";
      if (!whole || (std::string(verb) == "verify" && name == "--seconds")) continue;
      ++seen;
      for (const char* number : {kTooLarge, "-99999999999999999999", "18446744073709551617", "1.5"}) {
        const Outcome outcome = testing::headgate({verb, name, number});
        expect_refused(outcome, verb, name);
      }
    }
  }
  EXPECT_GE(seen, 35);
}

TEST(NumberOption, Number_DecimalOrHexadecimal_IsRead) {
  EXPECT_EQ(testing::headgate({"verify", "--seconds", ".5e-1", "--seed", "0x10"}).status, 0);
  EXPECT_EQ(testing::headgate({"verify", "--seconds", "0", "--seed", "0010"}).status, 0);
}

TEST(Json, Info_AsJson_HasTheFactsOfTheText) {
  const Outcome text = testing::headgate({"info"}), outcome = testing::headgate({"info", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const json facts = json::parse(outcome.out);
  const std::string help = testing::headgate({"info", "--help"}).out;
  for (const auto& [key, value] : facts.items()) {
    EXPECT_NE(help.find(key), std::string::npos) << key << " is not in the help";
    std::string label = key;
    for (char& c : label) c = c == '_' ? ' ' : c;
    EXPECT_NE(text.out.find(label + ' '), std::string::npos) << label;
    const bool shown = !value.is_string() || text.out.find(value.get<std::string>()) != std::string::npos;
    EXPECT_TRUE(shown) << value;
  }
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), static_cast<std::ptrdiff_t>(facts.size()));
  EXPECT_TRUE(facts.at("threads").is_number_integer());
  EXPECT_TRUE(facts.at("targets_supported").is_array());
}

TEST(Json, EveryVerb_JsonSupported_TakesAFlag) {
  for (const char* verb : {"explain", "eval", "compare", "xray", "generate", "tokenize", "bench", "info"}) {
    const std::string help = testing::headgate({verb, "--help"}).out;
    EXPECT_NE(help.find("\n  --json    "), std::string::npos) << verb << ": " << help;
  }
}

TEST(Json, Bench_AsJson_PrintsNothingElseToStdout) {
  const testing::Scratch scratch;
  const std::vector<std::string> quick = {"bench", "--quick", "--min-time", "0", "--filter", "^forward/T512/D64$"};
  const auto bench = [&quick](const std::vector<std::string>& more) {
    std::vector<std::string> all = quick;
    all.insert(all.end(), more.begin(), more.end());
    return testing::headgate(all);
  };
  const Outcome both = bench({"--json", "--json-out", scratch / "file"});
  ASSERT_EQ(both.status, 0) << both.err;
  EXPECT_EQ(both.out, testing::read_bytes(scratch / "file"));
  EXPECT_EQ(json::parse(both.out).at("cases").size(), 1U);
  EXPECT_NE(both.err.find("goals met"), std::string::npos) << "the table";
  expect_refused(bench({"--json", scratch / "other"}), "bench", "unexpected argument " + (scratch / "other"));
}

}  // namespace
}  // namespace headgate
