// SPDX-License-Identifier: Apache-2.0
#include "models/io/directory_lock.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

using headgate::testing::Scratch;

std::string refused_lock(const std::string& path) {
  try {
    const DirectoryLock lock(path);
    return "(taken without complaint)";
  } catch (const FileError& error) {
    return error.what();
  }
}

TEST(DirectoryLock, Lock_TakenTwice_IsRefused) {
  const Scratch scratch;
  std::optional<DirectoryLock> lock(std::in_place, scratch.path());
  if (!lock->unavailable().empty()) GTEST_SKIP() << "no locks here: " << lock->unavailable();
  EXPECT_TRUE(refused_lock(scratch.path()).starts_with(scratch.path() + ": in use by "))
      << refused_lock(scratch.path());
  EXPECT_EQ(refused_lock(scratch.path() + "/../" + scratch.path().substr(scratch.path().rfind('/') + 1)).find("(taken"),
            std::string::npos);
  lock.reset();
  EXPECT_NO_THROW(DirectoryLock(scratch.path()));
  EXPECT_EQ(scratch.count(), 0U) << "a lock leaves no file";
}

TEST(DirectoryLock, Lock_ProcessEnds_IsReleased) {
  const Scratch scratch;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const DirectoryLock lock(scratch.path());
    const char byte = 1;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const std::string held = refused_lock(scratch.path());
  // Some file systems give directories another device number in the kernel's list of locks.
  EXPECT_TRUE(held == scratch.path() + ": in use by process " + std::to_string(child) ||
              held == scratch.path() + ": in use by another process")
      << held;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(DirectoryLock(scratch.path()));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(DirectoryLock, Lock_PathCannotBeOpened_IsNamed) {
  const Scratch scratch;
  EXPECT_EQ(refused_lock(scratch / "none"), scratch / "none" + ": cannot open: No such file or directory");
  headgate::testing::write_bytes(scratch / "file", "");
  EXPECT_EQ(refused_lock(scratch / "file"), scratch / "file" + ": cannot open: Not a directory");
}

}  // namespace
}  // namespace headgate::io
