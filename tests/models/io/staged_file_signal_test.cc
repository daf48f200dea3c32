// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "models/io/scratch.hpp"
#include "models/io/staged_file.hpp"

namespace {

// A thread that sets this stops in unlink, like one whose signal handler is in the middle of it.
thread_local bool t_stops_in_unlink = false;
std::atomic<bool> g_in_unlink{false};
std::atomic<bool> g_path_is_forgotten{false};

constexpr int kSamePath = 0;
constexpr int kOtherPath = 3;

extern "C" void headgate_test_remove_files(int /*signal_number*/) { headgate::io::remove_unfinished_files(); }

}  // namespace

/// Replaces the C library's function in this program.
extern "C" int unlink(const char* path) noexcept {
  if (t_stops_in_unlink) {
    const std::string before = path;
    g_in_unlink = true;
    while (!g_path_is_forgotten) {
    }
    ::_exit(before == path ? kSamePath : kOtherPath);
  }
  return ::unlinkat(AT_FDCWD, path, 0);
}

namespace headgate::io {
namespace {

/// Deterministic: the handler of one thread is held in unlink while another thread closes the file and opens more.
TEST(StagedFileSignal, Path_HandlerUsesIt_StaysValid) {
  const testing::Scratch scratch;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGTERM, headgate_test_remove_files);
    std::optional<StagedFile> file(std::in_place, scratch / "out.bin", Staging::named);
    std::thread signalled([] {
      t_stops_in_unlink = true;
      std::raise(SIGTERM);  // to this thread
    });
    while (!g_in_unlink) {
    }
    file.reset();
    std::vector<StagedFile> others;
    others.reserve(100);
    for (int i = 0; i < 100; ++i) others.emplace_back(scratch / "other.bin", Staging::named);
    g_path_is_forgotten = true;
    signalled.join();  // the unlink above ends the process
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), kSamePath) << "the path that unlink was given changed under it";
}

}  // namespace
}  // namespace headgate::io
