// SPDX-License-Identifier: Apache-2.0
#include "models/io/staged_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

using headgate::testing::read_bytes;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;

class StagedFileTest : public ::testing::TestWithParam<Staging> {
 protected:
  Scratch scratch;
  const std::string path = scratch / "out.bin";
};

extern "C" void headgate_test_end_process(int signal_number) {
  remove_unfinished_files();
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void stage(StagedFile& file, const std::string& bytes) { file.write(bytes.data(), bytes.size()); }

/// Runs `work` in a child process. Returns its wait status once `signal` has been sent or the child has ended.
int status_of_child(const std::function<void()>& work, int signal) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::close(ready[0]);
    const char done = 1;
    if (::write(ready[1], &done, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  const ssize_t got = ::read(ready[0], &byte, 1);
  ::close(ready[0]);
  if (got == 1) ::kill(child, signal);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST_P(StagedFileTest, File_Committed_AppearsWhole) {
  StagedFile file(path, GetParam());
  stage(file, "first ");
  EXPECT_FALSE(std::filesystem::exists(path));
  stage(file, "second");
  file.commit();
  EXPECT_EQ(read_bytes(path), "first second");
  EXPECT_EQ(scratch.count(), 1U);
}

TEST_P(StagedFileTest, File_CommittedOverAnother_ReplacesItWhole) {
  write_bytes(path, "old and longer");
  {
    StagedFile file(path, GetParam());
    stage(file, "new");
    EXPECT_EQ(read_bytes(path), "old and longer");
    file.commit();
  }
  EXPECT_EQ(read_bytes(path), "new");
  EXPECT_EQ(scratch.count(), 1U);
}

TEST_P(StagedFileTest, File_NotCommitted_LeavesNothing) {
  write_bytes(path, "old");
  {
    StagedFile file(path, GetParam());
    stage(file, "new");
    file.flush();
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(scratch.count(), 1U);
}

TEST_P(StagedFileTest, StagedFile_Moved_KeepsItsFile) {
  std::optional<StagedFile> first(std::in_place, path, GetParam());
  stage(*first, "kept");
  StagedFile second(std::move(*first));
  first.reset();
  second.commit();
  EXPECT_EQ(read_bytes(path), "kept");
}

TEST_P(StagedFileTest, Target_Replaced_KeepsItsPermissions) {
  namespace fs = std::filesystem;
  for (const auto mode : {fs::perms{0600}, fs::perms{0444}, fs::perms{0666}}) {
    write_bytes(path, "old");
    fs::permissions(path, mode);
    StagedFile file(path, GetParam());
    stage(file, "new");
    file.commit();
    EXPECT_EQ(read_bytes(path), "new");
    EXPECT_EQ(fs::status(path).permissions(), mode);
    fs::remove(path);
  }
}

TEST_P(StagedFileTest, Target_LinkToNothing_IsWrittenWhereItPoints) {
  namespace fs = std::filesystem;
  fs::create_directory(scratch / "there");
  const std::string link = scratch / "link.bin";
  fs::create_symlink("second.bin", link);
  fs::create_symlink("there/../there/new.bin", scratch / "second.bin");
  StagedFile file(link, GetParam());
  stage(file, "new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::is_symlink(scratch / "second.bin"));
  EXPECT_EQ(read_bytes(scratch / "there/new.bin"), "new");
}

TEST(StagedFileTarget, Target_PipeBehindALink_IsRefusedAsNoFile) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string path = "/proc/self/fd/" + std::to_string(ends[1]);
  try {
    const StagedFile file(path);
    ADD_FAILURE() << "opened";
  } catch (const WriteError& error) {
    EXPECT_EQ(error.what(), path + ": cannot write: not a regular file");
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_P(StagedFileTest, Target_SymbolicLink_IsFollowed) {
  write_bytes(path, "old");
  const std::string link = scratch / "link.bin";
  std::filesystem::create_symlink("out.bin", link);
  StagedFile file(link, GetParam());
  stage(file, "new");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_bytes(path), "new");
}

TEST_P(StagedFileTest, Mode_Umask_IsHonoured) {
  const mode_t before = ::umask(027);
  {
    StagedFile file(path, GetParam());
    file.commit();
  }
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST_P(StagedFileTest, Path_TakesNoFile_IsRefused) {
  write_bytes(path, "a file");
  for (const std::string& bad : {scratch / "missing/out.bin", path + "/out.bin", scratch.path(), scratch.path() + "/",
                                 std::string("/dev/null"), std::string("/proc/out.bin")}) {
    try {
      StagedFile file(bad, GetParam());
      ADD_FAILURE() << bad;
    } catch (const FileError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(bad + ": cannot write: ")) << error.what();
    }
    if (!bad.starts_with("/proc")) {
      EXPECT_THROW(check_writable(bad), FileError) << bad;
    }
  }
  EXPECT_EQ(scratch.count(), 1U);
  EXPECT_THROW(check_writable(scratch / std::string(300, 'n')), FileError) << "the name is too long";
  EXPECT_NO_THROW(check_writable(path));
  EXPECT_NO_THROW(check_writable(scratch / "new.bin"));
}

TEST_P(StagedFileTest, Directory_ReadOnly_IsRefused) {
  constexpr uid_t kNobody = 65534;  // root may write anywhere, so the test temporarily becomes another user
  ASSERT_EQ(::chmod(scratch.path().c_str(), 0555), 0);
  const bool root = ::geteuid() == 0;
  ASSERT_EQ(root ? ::seteuid(kNobody) : 0, 0);
  EXPECT_THROW(check_writable(path), FileError);
  EXPECT_THROW(StagedFile(path, GetParam()), FileError);
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  ASSERT_EQ(::chmod(scratch.path().c_str(), 0755), 0);
  EXPECT_EQ(scratch.count(), 0U);
}

TEST_P(StagedFileTest, File_Interrupted_LeavesNothing) {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGXFSZ}) {
    const int status = status_of_child(
        [&] {
          std::signal(signal, headgate_test_end_process);
          static std::optional<StagedFile> file;  // no destructor runs in a process that a signal ends
          file.emplace(path, GetParam());
          stage(*file, "half");
        },
        signal);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), signal);
    EXPECT_EQ(scratch.count(), 0U);
  }
}

TEST_P(StagedFileTest, RemoveUnfinishedFiles_OtherFiles_KeepsThem) {
  write_bytes(path, "old");
  StagedFile done(scratch / "done.bin", GetParam());
  stage(done, "whole");
  done.commit();
  StagedFile half(path, GetParam());
  stage(half, "half");
  remove_unfinished_files();
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(read_bytes(scratch / "done.bin"), "whole");
  EXPECT_EQ(scratch.count(), 2U);
}

/// A library leaves the handling of signals to the program.
TEST_P(StagedFileTest, SignalHandlers_StagedFile_AreUnchanged) {
  const auto handlers = [] {
    std::vector<sighandler_t> out;
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU, SIGXFSZ}) {
      struct sigaction action {};
      EXPECT_EQ(::sigaction(signal, nullptr, &action), 0);
      out.push_back(action.sa_handler);
    }
    return out;
  };
  const std::vector<sighandler_t> before = handlers();  // a shell may make a background process ignore some signals
  StagedFile file(path, GetParam());
  stage(file, "half");
  EXPECT_EQ(handlers(), before);
}

TEST_P(StagedFileTest, File_DiskFull_LeavesNothing) {
  constexpr int kRefused = 42;
  const int status = status_of_child(
      [&] {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{4, 4};  // bytes a file may grow to
        ::setrlimit(RLIMIT_FSIZE, &limit);
        try {
          StagedFile file(path, GetParam());
          stage(file, "more than four bytes");
          file.commit();
        } catch (const FileError&) {
          ::_exit(kRefused);
        }
      },
      SIGKILL);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kRefused);
  EXPECT_EQ(scratch.count(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Staging, StagedFileTest, ::testing::Values(Staging::automatic, Staging::named),
                         [](const auto& test) { return test.param == Staging::named ? "named" : "automatic"; });

}  // namespace
}  // namespace headgate::io
