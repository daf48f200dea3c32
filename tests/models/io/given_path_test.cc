// SPDX-License-Identifier: Apache-2.0
#include "models/io/given_path.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "models/io/file_error.hpp"
#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

namespace fs = std::filesystem;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;

std::string refused_path(const std::string& path) {
  try {
    return "taken as " + given_path(path);
  } catch (const FileError& error) {
    return error.what();
  }
}

TEST(GivenPath, FileOrDirectory_Exists_IsTakenAsItIs) {
  const Scratch scratch;
  write_bytes(scratch / "file", "x");
  EXPECT_EQ(given_path(scratch / "file"), scratch / "file");
  EXPECT_EQ(given_path(scratch.path()), scratch.path());
}

TEST(GivenPath, Path_Missing_HasAMessageForEachReason) {
  const Scratch scratch;
  EXPECT_EQ(refused_path(scratch / "none"), scratch / "none" + ": does not exist");
  EXPECT_EQ(refused_path(scratch / "no/such/file"),
            scratch / "no/such/file" + ": does not exist: there is no directory " + scratch / "no");
  write_bytes(scratch / "empty", "");
  EXPECT_EQ(refused_path(scratch / "empty"), scratch / "empty" + ": is an empty file");
  EXPECT_EQ(refused_path(scratch / "empty/model"), scratch / "empty/model" + ": cannot be reached: Not a directory");
  fs::create_symlink("b", scratch / "a");
  fs::create_symlink("a", scratch / "b");
  EXPECT_EQ(refused_path(scratch / "a"), scratch / "a" + ": is a loop of symbolic links");
  fs::create_symlink("gone", scratch / "dangling");
  EXPECT_EQ(refused_path(scratch / "dangling"), scratch / "dangling" + ": is a link to gone, which does not exist");
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(refused_path(scratch / "pipe"), scratch / "pipe" + ": is neither a file nor a directory");
  EXPECT_EQ(refused_path(""), "the path is empty");
  EXPECT_EQ(refused_path(std::string("a\0b", 3)), "a\\x00b: the path contains a NUL byte");
}

TEST(GivenPath, Directory_Forbidden_IsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "everything is permitted to root";
  const Scratch scratch;
  fs::create_directories(scratch / "closed/inner");
  write_bytes(scratch / "secret", "x");
  fs::permissions(scratch / "secret", fs::perms::none);
  fs::permissions(scratch / "closed", fs::perms::none);
  EXPECT_EQ(refused_path(scratch / "closed"), scratch / "closed" + ": no permission to read this directory");
  EXPECT_EQ(refused_path(scratch / "closed/inner"),
            scratch / "closed/inner" + ": no permission to enter the directory " + scratch / "closed");
  EXPECT_EQ(refused_path(scratch / "secret"), scratch / "secret" + ": no permission to read this file");
  fs::permissions(scratch / "closed", fs::perms::owner_all);
}

TEST(GivenPath, CacheOfTheHub_Given_LeadsToASnapshot) {
  const Scratch scratch;
  const std::string model = scratch / "models--a--b";
  fs::create_directories(model + "/snapshots");
  EXPECT_EQ(refused_path(model), model + ": is a model of the Hub's cache without a snapshot: download it again");
  fs::create_directories(model + "/snapshots/0a1b");
  EXPECT_EQ(given_path(model), model + "/snapshots/0a1b");
  fs::create_directories(model + "/snapshots/2c3d");
  EXPECT_EQ(refused_path(model),
            model + ": has 2 snapshots and no refs/main: give one of them, such as " + model + "/snapshots/0a1b");
  fs::create_directories(model + "/refs");
  write_bytes(model + "/refs/main", "2c3d\n");
  EXPECT_EQ(given_path(model), model + "/snapshots/2c3d");
  write_bytes(model + "/refs/main", "4e5f");
  EXPECT_EQ(refused_path(model),
            model + ": refs/main names the snapshot 4e5f, which is not there: download the model again");
  for (const std::string& name : {std::string("../.."), std::string("0a1b\0", 5), std::string(), std::string("..")}) {
    write_bytes(model + "/refs/main", name);
    EXPECT_NE(refused_path(model).find("is not the name of a snapshot"), std::string::npos) << refused_path(model);
  }
}

}  // namespace
}  // namespace headgate::io
