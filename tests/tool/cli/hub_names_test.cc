// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tool/cli/small_verbs.hpp"

// Every verb that takes a model takes its name on the Hub.

namespace headgate {
namespace {

namespace fs = std::filesystem;
using testing::Outcome;

/// A cache of the Hub whose model tiny/run was trained for a moment.
class HubNames : public ::testing::Test {
 protected:
  HubNames() {
    EXPECT_EQ(verb.train("run", {"--steps", "1"}).status, 0);
    fs::create_directories(snapshot);
    fs::copy(verb.path("run/checkpoint"), snapshot, fs::copy_options::recursive);
    fs::create_directories(verb.path("hub/models--tiny--run/refs"));
    testing::write_bytes(verb.path("hub/models--tiny--run/refs/main"), "c0ffee");
    ::setenv("HF_HUB_CACHE", verb.path("hub").c_str(), 1);
  }
  ~HubNames() override { ::unsetenv("HF_HUB_CACHE"); }

  testing::TrainVerb verb;
  const std::string snapshot = verb.path("hub/models--tiny--run/snapshots/c0ffee");
};

TEST_F(HubNames, Verb_NameInTheCache_DoesWhatItDoesWithThePath) {
  const auto commands = [this](const std::string& model) {
    return std::vector<std::vector<std::string>>{
        {"generate", model, "--prompt", "it", "--threads", "1"},
        {"eval", model, "--text", verb.text(), "--json"},
        {"xray", model, "--text", verb.text(), "--tokens", "16", "--json"},
        {"tokenize", model, "--text", verb.text()},
    };
  };
  const auto named = commands("tiny/run"), given = commands(snapshot);
  for (std::size_t i = 0; i < named.size(); ++i) {
    const Outcome by_name = testing::headgate(named[i]), by_path = testing::headgate(given[i]);
    EXPECT_EQ(by_name.status, 0) << by_name.err;
    EXPECT_NE(by_name.out, "");
    std::string expected = by_path.out;
    for (std::size_t at = 0; (at = expected.find(snapshot)) != std::string::npos;) {
      expected.replace(at, snapshot.size(), "tiny/run");
    }
    EXPECT_EQ(by_name.out, expected) << named[i].front();
  }
  EXPECT_EQ(testing::headgate({"convert", "tiny/run@c0ffee", verb.path("out")}).status, 0);
  const Outcome more =
      testing::headgate({"train", "--init", "tiny/run", "--data", verb.text(), "--out", verb.path("more"), "--steps",
                         "1", "--batch", "1", "--seq-len", "16", "--eval-tokens", "64"});
  EXPECT_EQ(more.status, 0) << more.err;
}

TEST_F(HubNames, Output_ThatIsAFileOfTheModel_IsRefused) {
  const Outcome outcome =
      testing::headgate({"eval", "tiny/run", "--text", verb.text(), "--logits", snapshot + "/model.safetensors"});
  testing::expect_refused(outcome, "eval", "model.safetensors");
}

TEST_F(HubNames, Name_NotInTheCache_IsRefusedByEveryVerb) {
  const std::string reason = "tiny/other: does not exist, and is not in the Hugging Face Hub's cache " +
                             verb.path("hub") + " (HF_HUB_CACHE, HF_HOME): `hf download tiny/other` puts it there";
  const std::vector<std::vector<std::string>> commands{
      {"generate", "tiny/other", "--prompt", "it"},
      {"eval", "tiny/other", "--text", verb.text()},
      {"xray", "tiny/other", "--text", verb.text()},
      {"tokenize", "tiny/other", "--text", verb.text()},
      {"convert", "tiny/other", verb.path("out")},
      {"train", "--init", "tiny/other", "--data", verb.text(), "--out", verb.path("new")},
      {"demo", "--only", "model", "--model", "tiny/other", "--data", verb.text()},
  };
  for (const auto& command : commands) testing::expect_refused(testing::headgate(command), command.front(), reason);
}

}  // namespace
}  // namespace headgate
