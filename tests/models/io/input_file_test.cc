// SPDX-License-Identifier: Apache-2.0
#include "models/io/input_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

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

}  // namespace
}  // namespace headgate::io
