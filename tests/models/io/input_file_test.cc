// SPDX-License-Identifier: Apache-2.0
#include "models/io/input_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "models/io/exists.hpp"
#include "models/io/file_error.hpp"
#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

using headgate::testing::Scratch;
using headgate::testing::write_bytes;

TEST(InputStream, File_OfManyPieces_IsReadWhole) {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i);
  write_bytes(scratch / "text", text);
  EXPECT_EQ(read_stream(scratch / "text", text.size()), text);
}

/// The file is sparse: reading its terabyte would time the test out.
TEST(InputStream, File_OverTheLimit_IsRefusedBeforeItIsRead) {
  const Scratch scratch;
  write_bytes(scratch / "large", "");
  std::filesystem::resize_file(scratch / "large", std::uintmax_t{1} << 40);
  try {
    const InputStream stream(scratch / "large", 4096);
    ADD_FAILURE() << "taken";
  } catch (const FileError& error) {
    EXPECT_EQ(error.what(), scratch / "large" + ": is larger than the limit of 4096 bytes");
  }
  EXPECT_NO_THROW(InputStream(scratch / "large").next());
}

TEST(InputStream, Directory_AsAFile_IsRefusedByName) {
  const Scratch scratch;
  EXPECT_THROW(InputStream(scratch.path()), FileError);
}

TEST(Fail, Path_ControlCharacters_AreEscaped) {
  try {
    fail(std::string("a\0b\n", 4), "wrong");
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "a\\x00b\\x0a: wrong");
  }
}

TEST(Exists, LinkToNothing_IsThere_PathsThatCannotBe_AreNot) {
  const testing::Scratch scratch;
  std::filesystem::create_symlink("nowhere", scratch / "lost");
  std::filesystem::create_symlink("loop", scratch / "loop");
  testing::write_bytes(scratch / "file", "text");
  EXPECT_TRUE(exists(scratch / "file"));
  EXPECT_TRUE(exists(scratch / "lost"));
  EXPECT_FALSE(exists(scratch / "none"));
  EXPECT_FALSE(exists(scratch / "file/none"));
  EXPECT_FALSE(exists(scratch / "lost/none"));
  EXPECT_FALSE(exists(scratch / "loop/none"));
  EXPECT_FALSE(exists(scratch / std::string(5000, 'x')));
}

TEST(Exists, DirectoryThatMayNotBeEntered_IsAnErrorWithTheReason) {
  constexpr uid_t kNobody = 65534;  // everything is permitted to root
  const testing::Scratch scratch;
  std::filesystem::create_directory(scratch / "closed");
  ASSERT_EQ(::chmod((scratch / "closed").c_str(), 0), 0);
  const auto look = [&] {
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) ::_exit(2);
    try {
      (void)exists(scratch / "closed/file");
    } catch (const FileError& error) {
      ::_exit(std::string(error.what()).ends_with("closed/file: cannot read: Permission denied") ? 0 : 3);
    }
    ::_exit(1);
  };
  EXPECT_EXIT(look(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace headgate::io
