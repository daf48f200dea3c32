// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "models/io/directory_entries.hpp"
#include "models/io/hub_cache.hpp"
#include "models/io/scratch.hpp"
#include "models/io/staged_directory.hpp"

// Replaces two functions of libc, so that reading a directory fails as on a broken disk, and so that another process
// removes a directory just before it is locked.

namespace {

bool g_reading_fails = false;
int g_removals = 0;  // number of next calls of flock() that remove their directory first

/// Makes readdir() fail after the last entry while it exists. A directory_iterator then fails in operator++.
class BrokenDisk {
 public:
  BrokenDisk() { g_reading_fails = true; }
  BrokenDisk(const BrokenDisk&) = delete;
  BrokenDisk& operator=(const BrokenDisk&) = delete;
  ~BrokenDisk() { g_reading_fails = false; }
};

}  // namespace

/// Replaces the C library's function in this program, also where libstdc++ calls it.
extern "C" __attribute__((visibility("default"))) dirent* readdir(DIR* directory) {
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  dirent* const entry = real(directory);
  if (entry == nullptr && g_reading_fails) errno = EIO;
  return entry;
}

/// Replaces the C library's function in this program.
extern "C" int flock(int descriptor, int operation) noexcept {
  if (g_removals > 0) {
    --g_removals;
    std::error_code error;
    std::filesystem::remove(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error), error);
  }
  return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
}

namespace headgate::io {
namespace {

namespace fs = std::filesystem;
using headgate::testing::read_bytes;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;

TEST(BrokenDisk, DirectoryEntries_ReadingFails_SetsTheError) {
  const Scratch scratch;
  write_bytes(scratch / "a", "");
  std::error_code error;
  EXPECT_EQ(directory_entries(scratch / "", error).size(), 1U);
  EXPECT_FALSE(error);
  directory_entries(scratch / "none", error);
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  const BrokenDisk broken;
  EXPECT_EQ(directory_entries(scratch / "", error).size(), 1U);
  EXPECT_EQ(error, std::errc::io_error);
}

/// The destructor reads the directory too. An exception there would end the process.
TEST(BrokenDisk, StagedDirectory_NotCommitted_RemovesWhatItKnows) {
  const Scratch scratch;
  write_bytes(scratch / "other", "");
  {
    const BrokenDisk broken;
    const StagedDirectory staged(scratch / "model", {"a"});
    for (const char* name : {"/a", "/.a.01234567.tmp"}) write_bytes(staged.path() + name, "half");
    const StagedDirectory other(scratch / "model", {"a"});
  }
  EXPECT_EQ(scratch.count(), 1U);
}

TEST(BrokenDisk, StagedDirectory_TargetExists_IsNotReplaced) {
  const Scratch scratch;
  fs::create_directory(scratch / "model");
  write_bytes(scratch / "model/a", "mine");
  const BrokenDisk broken;
  try {
    const StagedDirectory staged(scratch / "model", {"a"});
    ADD_FAILURE() << "replaces what it cannot read";
  } catch (const WriteError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot write: Input/output error"), std::string::npos) << error.what();
  }
}

TEST(BrokenDisk, HubCache_Snapshots_AreAFileError) {
  const Scratch scratch;
  fs::create_directories(scratch / "snapshots/0a1b");
  EXPECT_EQ(snapshot_of(scratch / "", "main"), scratch / "/snapshots/0a1b");
  const BrokenDisk broken;
  EXPECT_THROW(snapshot_of(scratch / "", "main"), FileError);
}

TEST(StagingLock, Directory_RemovedBeforeItsLock_IsMadeAgain) {
  const Scratch scratch;
  g_removals = 2;
  StagedDirectory staged(scratch / "model", {"a"});
  EXPECT_EQ(g_removals, 0);
  write_bytes(staged.path() + "/a", "whole");
  staged.commit();
  EXPECT_EQ(read_bytes(scratch / "model/a"), "whole");
  EXPECT_EQ(scratch.count(), 1U);
}

TEST(StagingLock, Directory_RemovedBeforeEveryLock_IsAWriteError) {
  const Scratch scratch;
  g_removals = 100;
  EXPECT_THROW(StagedDirectory(scratch / "model", {"a"}), WriteError);
  g_removals = 0;
  EXPECT_EQ(scratch.count(), 0U);
}

}  // namespace
}  // namespace headgate::io
