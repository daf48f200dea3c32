// SPDX-License-Identifier: Apache-2.0
#include "models/io/staged_directory.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "models/io/scratch.hpp"
#include "models/io/staged_file.hpp"

namespace headgate::io {
namespace {

using headgate::testing::read_bytes;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;
namespace fs = std::filesystem;

class StagedDirectoryTest : public ::testing::TestWithParam<Replacing> {
 protected:
  void put(const std::string& target, const std::string& a, const std::string& b = "") {
    StagedDirectory staged(target, {"a", "b"});
    write_bytes(staged.path() + "/a", a);
    if (!b.empty()) write_bytes(staged.path() + "/b", b);
    staged.commit(GetParam());
  }

  static std::string refusal(const std::string& target) {
    try {
      const StagedDirectory staged(target, {"a", "b"});
      return "(taken without complaint)";
    } catch (const FileError& error) {
      return error.what();
    }
  }

  Scratch scratch;
};

TEST_P(StagedDirectoryTest, Directory_Committed_AppearsOrIsReplacedWhole) {
  const std::string target = scratch / "model";
  put(target, "first", "extra");
  EXPECT_EQ(read_bytes(target + "/a"), "first");
  EXPECT_EQ(read_bytes(target + "/b"), "extra");
  put(target + "/", "second");
  EXPECT_EQ(read_bytes(target + "/a"), "second");
  EXPECT_FALSE(fs::exists(target + "/b"));
  EXPECT_EQ(scratch.count(), 1U);
}

TEST_P(StagedDirectoryTest, Parents_Missing_AreMade) {
  put(scratch / "runs/one/model", "x");
  EXPECT_EQ(read_bytes(scratch / "runs/one/model/a"), "x");
}

TEST_P(StagedDirectoryTest, Directory_Replaced_KeepsPermissions) {
  const std::string target = scratch / "model";
  put(target, "first", "extra");
  fs::permissions(target, fs::perms{0710});
  fs::permissions(target + "/a", fs::perms{0600});
  put(target, "second", "more");
  EXPECT_EQ(read_bytes(target + "/a"), "second");
  EXPECT_EQ(fs::status(target).permissions(), fs::perms{0710});
  EXPECT_EQ(fs::status(target + "/a").permissions(), fs::perms{0600});
}

TEST_P(StagedDirectoryTest, Target_LinkToNothing_IsWrittenWhereItPoints) {
  fs::create_directory(scratch / "there");
  fs::create_directory_symlink("there/model", scratch / "link");
  put(scratch / "link", "first");
  EXPECT_TRUE(fs::is_symlink(scratch / "link"));
  EXPECT_EQ(read_bytes(scratch / "there/model/a"), "first");
}

TEST_P(StagedDirectoryTest, Directory_NotCommitted_ChangesNothing) {
  const std::string target = scratch / "model";
  put(target, "first");
  {
    const StagedDirectory staged(target, {"a", "b"});
    write_bytes(staged.path() + "/a", "second");
  }
  EXPECT_EQ(read_bytes(target + "/a"), "first");
  EXPECT_EQ(scratch.count(), 1U);
}

TEST_P(StagedDirectoryTest, Target_NotItsOwn_IsNeverReplaced) {
  const std::string target = scratch / "home";
  fs::create_directory(target);
  write_bytes(target + "/thesis.tex", "years");
  EXPECT_NE(refusal(target).find("'thesis.tex' in it"), std::string::npos) << refusal(target);
  EXPECT_EQ(read_bytes(target + "/thesis.tex"), "years");
  write_bytes(scratch / "file", "x");
  EXPECT_NE(refusal(scratch / "file").find("not a directory"), std::string::npos);
  EXPECT_NE(refusal("/").find("cannot write"), std::string::npos);
  EXPECT_EQ(scratch.count(), 2U);
}

TEST_P(StagedDirectoryTest, Target_AppearsMeanwhile_IsNotReplaced) {
  const std::string target = scratch / "model";
  put(target, "first");
  StagedDirectory staged(target, {"a", "b"});
  write_bytes(staged.path() + "/a", "second");
  write_bytes(target + "/notes", "mine");
  EXPECT_THROW(staged.commit(GetParam()), FileError);
  EXPECT_EQ(read_bytes(target + "/a"), "first");
  EXPECT_EQ(read_bytes(target + "/notes"), "mine");
}

TEST_P(StagedDirectoryTest, Target_SymbolicLink_IsFollowed) {
  put(scratch / "real", "first");
  fs::create_directory_symlink(scratch / "real", scratch / "link");
  put(scratch / "link", "second");
  EXPECT_TRUE(fs::is_symlink(scratch / "link"));
  EXPECT_EQ(read_bytes(scratch / "real/a"), "second");
}

TEST_P(StagedDirectoryTest, Leftovers_OfKilledProcesses_AreRemoved) {
  const std::string target = scratch / "model";
  const std::string abandoned = scratch / ".model.0123abcd.new";
  fs::create_directory(abandoned);
  write_bytes(abandoned + "/a", "half");
  write_bytes(abandoned + "/.a.01234567.tmp", "half");
  const StagedDirectory other(target, {"a", "b"});  // it has removed the other already
  EXPECT_FALSE(fs::exists(abandoned));
  write_bytes(other.path() + "/a", "in the making");
  put(target, "first");
  EXPECT_EQ(read_bytes(other.path() + "/a"), "in the making");
  EXPECT_EQ(read_bytes(target + "/a"), "first");
}

INSTANTIATE_TEST_SUITE_P(Both, StagedDirectoryTest, ::testing::Values(Replacing::automatic, Replacing::two_renames),
                         [](const auto& parameter) {
                           return parameter.param == Replacing::automatic ? "automatic" : "two_renames";
                         });

/// Calls what a signal's handler calls before it ends the process.
TEST(UnfinishedDirectory, RemoveUnfinishedFiles_UncommittedDirectory_RemovesItWithItsFiles) {
  const Scratch scratch;
  const StagedDirectory staged(scratch / "model", {"a", "b"});
  write_bytes(staged.path() + "/a", "half");
  const StagedFile part(staged.path() + "/b", Staging::named);
  remove_unfinished_files();
  EXPECT_EQ(scratch.count(), 0U);
}

TEST(UnfinishedDirectory, RemoveUnfinishedFiles_CommittedDirectory_KeepsIt) {
  const Scratch scratch;
  for (const char* text : {"first", "second"}) {
    StagedDirectory staged(scratch / "model", {"a"});
    write_bytes(staged.path() + "/a", text);
    staged.commit();
    remove_unfinished_files();
    EXPECT_EQ(read_bytes(scratch / "model/a"), text);
  }
  EXPECT_EQ(scratch.count(), 1U);
}

TEST(UnfinishedDirectory, RemoveUnfinishedFiles_UncommittedReplacement_KeepsItsTarget) {
  const Scratch scratch;
  StagedDirectory first(scratch / "model", {"a"});
  write_bytes(first.path() + "/a", "first");
  first.commit();
  const StagedDirectory second(scratch / "model", {"a"});
  write_bytes(second.path() + "/a", "half");
  remove_unfinished_files();
  EXPECT_EQ(read_bytes(scratch / "model/a"), "first");
  EXPECT_EQ(scratch.count(), 1U);
}

TEST(PresentDirectory, PresentDirectory_KilledBetweenTwoRenames_IsFound) {
  const Scratch scratch;
  const std::string target = scratch / "model";
  EXPECT_EQ(present_directory(target), target);
  fs::create_directory(scratch / ".model.old");
  write_bytes(scratch / ".model.old/a", "last");
  EXPECT_EQ(read_bytes(present_directory(target) + "/a"), "last");
  StagedDirectory staged(target, {"a"});
  write_bytes(staged.path() + "/a", "next");
  staged.commit();
  EXPECT_EQ(present_directory(target), target);
  EXPECT_EQ(read_bytes(target + "/a"), "next");
  EXPECT_EQ(scratch.count(), 1U);
}

}  // namespace
}  // namespace headgate::io
