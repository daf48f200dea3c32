// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "tool/cli/attend_files.hpp"
#include "tool/cli/small_verbs.hpp"

// Libraries crash, or wait forever, where the system refuses memory for matrix products. Checks that verbs without
// products work under a limit on address space, and that the others name the limit.

namespace headgate {
namespace {

using testing::Outcome;
using testing::run_program;

#ifndef __SANITIZE_ADDRESS__  // AddressSanitizer exceeds any limit on address space

/// Runs the tool under `ulimit -v`, and kills it (status 137) after a minute.
Outcome headgate_within(int kibibytes, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"/bin/sh", "-c",
                                   fmt::format("ulimit -v {}; exec timeout -s KILL 60 \"$0\" \"$@\"", kibibytes),
                                   testing::headgate_path()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command);
}

constexpr int kTooLittle = 115000;  // for products in addition to the tool itself

class AddressSpace : public ::testing::Test {
 protected:
  testing::TrainVerb verb;
};

TEST_F(AddressSpace, Verbs_WithoutProducts_NeedNoMemoryForThem) {
  ASSERT_EQ(verb.train("run").status, 0);
  std::vector<float> ones(4, 1.0F);
  testing::write_npy(verb.path("x.npy"), make_view(ones.data(), Shape{1, 1, 2, 2}), 4);
  testing::write_bytes(verb.path("tokenizer.json"),
                       R"({"pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": [], "vocab":)"
                       R"( {"a": 0, "Ġ": 1}}})");
  testing::write_bytes(verb.path("a"), "a");
  const std::string x = verb.path("x.npy");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--version"},
           {"--help"},
           {"info"},
           {"explain", HEADGATE_EXAMPLES "/gated_two_tokens.json"},
           {"attend", "--q", x, "--k", x, "--v", x, "--out", verb.path("y.npy"), "--threads", "1"},
           {"tokenize", verb.path("tokenizer.json"), "--text", verb.path("a")},
           {"compare", verb.path("run")},
           {"convert", verb.path("run") + "/checkpoint", verb.path("converted")}}) {
    const Outcome outcome = headgate_within(kTooLittle, arguments);
    EXPECT_EQ(outcome.status, 0) << arguments.front() << ": " << outcome.err;
  }
}

TEST_F(AddressSpace, Verbs_WithProductsUnderALimit_NameTheLimit) {
  ASSERT_EQ(verb.train("run", {"--seq-len", "64"}).status, 0);
  const std::string long_prompt(40, 'g');  // products of fewer rows pack nothing
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           verb.command("other"),
           {"eval", verb.path("run"), "--text", verb.text(), "--threads", "1"},
           {"xray", verb.path("run"), "--text", verb.text(), "--threads", "1"},
           {"generate", verb.path("run"), "--prompt", long_prompt, "--threads", "1"}}) {
    const Outcome outcome = headgate_within(kTooLittle, arguments);
    EXPECT_EQ(outcome.status, 2) << arguments.front() << outcome.err;
    EXPECT_TRUE(std::regex_search(
        outcome.err, std::regex("headgate " + arguments.front() +
                                ": matrix products need [0-9]+ MB of address space for [12] threads?, and the limit "
                                "\\(ulimit -v\\) leaves [0-9]+ MB: raise it[^\\n]*\\n$")))
        << outcome.err;
  }
}

TEST_F(AddressSpace, Training_AnyLimit_Ends) {
  int trained = 0, refused = 0;
  for (int limit = 90000; limit <= 200000; limit += 10000) {
    // Debian 13's libraries do not load within the least of these limits.
    if (headgate_within(limit, {"--version"}).status != 0) continue;
    const std::string run = fmt::format("run{}", limit);
    const Outcome outcome =
        headgate_within(limit, verb.command(run, {"--dim", "128", "--seq-len", "64", "--batch", "8", "--steps", "2"}));
    EXPECT_TRUE(outcome.status == 0 || outcome.status == 2) << limit << ": " << outcome.status << outcome.err;
    ++(outcome.status == 0 ? trained : refused);
  }
  EXPECT_GT(trained, 0);
  EXPECT_GT(refused, 0);
}

#endif

}  // namespace
}  // namespace headgate
