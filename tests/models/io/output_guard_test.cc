// SPDX-License-Identifier: Apache-2.0
#include "models/io/output_guard.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "headgate/error.hpp"
#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

namespace fs = std::filesystem;

class OutputGuard : public ::testing::Test {
 protected:
  OutputGuard() { testing::write_bytes(in, "in"); }

  /// Returns the message of the refusal; empty if accepted.
  static std::string refusal(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs) {
    try {
      check_overwrites(outputs, inputs);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string refusal_of(const std::string& output) const { return refusal({{"--out", output}}, {{"MODEL", in}}); }

  testing::Scratch scratch;
  const std::string in = scratch / "in";
};

TEST_F(OutputGuard, Output_IsAnInput_IsRefusedByEveryPathOfIt) {
  fs::create_hard_link(in, scratch / "hard");
  fs::create_symlink(in, scratch / "soft");
  fs::create_directory(scratch / "folder");
  fs::create_directory_symlink(scratch.path(), scratch / "folder/up");
  for (const char* path : {"in", "./in", "folder/../in", "hard", "soft", "folder/up/in", "folder/up/hard"}) {
    const std::string output = scratch / path;
    EXPECT_EQ(refusal_of(output),
              "--out " + output + " would overwrite " + in + ", a file of MODEL: give another path");
  }
  EXPECT_EQ(refusal_of(scratch / "out"), "");
  EXPECT_EQ(refusal_of(""), "");
}

TEST_F(OutputGuard, Input_Missing_IsNotCreated) {
  fs::create_directory_symlink(scratch.path(), scratch / "link");
  const std::vector<NamedPath> inputs{{"MODEL", scratch / "tokenizer.json"}};
  EXPECT_NE(refusal({{"--out", scratch / "link/tokenizer.json"}}, inputs), "");
  EXPECT_EQ(refusal({{"--out", scratch / "link/other.json"}}, inputs), "");
}

TEST_F(OutputGuard, Outputs_OneFile_AreRefused) {
  fs::create_directory(scratch / "folder");
  const std::string one = scratch / "out", two = scratch / "folder/../out";
  EXPECT_EQ(refusal({{"--out", one}, {"--json", two}}, {}),
            "--out " + one + " and --json " + two + " are one file: give two paths");
  testing::write_bytes(one, "old");
  fs::create_hard_link(one, scratch / "hard");
  EXPECT_NE(refusal({{"--out", one}, {"--json", scratch / "hard"}}, {}), "");
  EXPECT_EQ(refusal({{"--out", one}, {"--json", scratch / "json"}, {"--lse", ""}, {"--weights", ""}}, {}), "");
}

TEST_F(OutputGuard, Outputs_LinkToNothing_IsWhatItPointsTo) {
  fs::create_symlink("out", scratch / "link");
  EXPECT_NE(refusal({{"--out", scratch / "out"}, {"--json", scratch / "link"}}, {}), "");
}

TEST_F(OutputGuard, Paths_CannotBeResolved_AreDifferentFiles) {
  const std::string one = scratch / std::string(300, 'a'), two = scratch / std::string(300, 'b');
  EXPECT_EQ(refusal({{"--out", one}, {"--json", two}}, {}), "");
  EXPECT_NE(refusal({{"--out", one}, {"--json", one}}, {}), "");
}

}  // namespace
}  // namespace headgate::io
