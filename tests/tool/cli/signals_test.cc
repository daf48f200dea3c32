// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/signals.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/io/mapped_file.hpp"
#include "models/io/scratch.hpp"
#include "models/io/staged_file.hpp"

namespace headgate::cli {
namespace {

using headgate::testing::Scratch;

/// Returns the wait status of a child process that does `work` and, if that returns, ends with status 0.
int status_of_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

void expect_ended_by(int status, int signal) {
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), signal);
}

/// Leaves a file under a temporary name, which no destructor removes when a signal ends the process.
void leave_unfinished_file(const Scratch& scratch) {
  static std::optional<io::StagedFile> file;
  file.emplace(scratch / "out.bin", io::Staging::named);
  file->write("half", 4);
}

TEST(Signals, Signal_EndsTheProcess_LeavesNoUnfinishedFile) {
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU}) {
    const Scratch scratch;
    const int status = status_of_child([&] {
      remove_unfinished_files_on_signals();
      leave_unfinished_file(scratch);
      std::raise(signal);
    });
    expect_ended_by(status, signal);
    EXPECT_EQ(scratch.count(), 0U) << signal;
  }
}

/// What a child process wrote to stderr, and how it ended.
struct Ended {
  int status = 0;
  std::string said;
};

Ended run_child(const std::function<void()>& work) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  Ended out;
  out.status = status_of_child([&] {
    ::dup2(ends[1], STDERR_FILENO);
    work();
  });
  ::close(ends[1]);
  out.said.resize(1024);
  out.said.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(ends[0], out.said.data(), out.said.size()), 0)));
  ::close(ends[0]);
  return out;
}

/// Reads each page, so that the compiler keeps the accesses.
void read_pages(const io::MappedFile& file) {
  volatile std::uint8_t sum = 0;
  for (std::int64_t at = 0; at < file.size(); at += 512) sum = sum + file.data()[at];
}

TEST(Signals, MappedFile_Shortened_IsAnErrorThatNamesIt) {
  const Scratch scratch;
  const std::string path = scratch / "weights\n.gguf", other = scratch / "other";
  headgate::testing::write_bytes(path, std::string(std::size_t{1} << 20, 'x'));
  headgate::testing::write_bytes(other, std::string(std::size_t{1} << 20, 'x'));
  const Ended ended = run_child([&] {
    report_lost_files("headgate test");
    const io::MappedFile before(other);
    { const io::MappedFile unmapped(other); }
    io::MappedFile opened(path);
    const io::MappedFile file(std::move(opened));
    leave_unfinished_file(scratch);
    read_pages(file);
    if (::truncate(path.c_str(), 5000) != 0) ::_exit(3);
    read_pages(before);
    read_pages(file);
  });
  ASSERT_TRUE(WIFEXITED(ended.status)) << ended.status;
  EXPECT_EQ(WEXITSTATUS(ended.status), 2);
  EXPECT_EQ(ended.said, "headgate test: " + (scratch / "weights\\x0a.gguf") +
                            ": became shorter while it was read, or its disk has failed\n");
  EXPECT_EQ(scratch.count(), 2U) << "the unfinished file is removed";
}

TEST(Signals, MappedFile_ShortenedWhileThreadsReadIt_IsReportedOnce) {
  const Scratch scratch;
  const std::string path = scratch / "weights";
  headgate::testing::write_bytes(path, std::string(std::size_t{1} << 22, 'x'));
  const Ended ended = run_child([&] {
    report_lost_files("headgate test");
    const io::MappedFile file(path);
    std::vector<std::thread> readers;
    readers.reserve(4);
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&file] {
        while (true) read_pages(file);
      });
    }
    if (::truncate(path.c_str(), 0) != 0) ::_exit(3);
    for (std::thread& reader : readers) reader.join();
  });
  ASSERT_TRUE(WIFEXITED(ended.status)) << ended.status;
  EXPECT_EQ(WEXITSTATUS(ended.status), 2);
  EXPECT_EQ(std::count(ended.said.begin(), ended.said.end(), '\n'), 1) << ended.said;
}

TEST(Signals, BusError_ElsewhereOrSent_EndsTheProcess) {
  expect_ended_by(status_of_child([] {
                    report_lost_files("headgate test");
                    std::raise(SIGBUS);
                  }),
                  SIGBUS);
  const Scratch scratch;
  const std::string path = scratch / "other";
  headgate::testing::write_bytes(path, "x");
  expect_ended_by(status_of_child([&] {
                    report_lost_files("headgate test");
                    const int file = ::open(path.c_str(), O_RDONLY);
                    const void* mapped = ::mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, file, 0);
                    if (::truncate(path.c_str(), 0) == 0) std::fputc(*static_cast<const char*>(mapped), stderr);
                  }),
                  SIGBUS);
}

TEST(Signals, Signal_IgnoredByTheParent_StaysIgnored) {
  const Scratch scratch;
  const int status = status_of_child([&] {
    std::signal(SIGHUP, SIG_IGN);
    remove_unfinished_files_on_signals();
    const SignalWatch watch;
    std::raise(SIGHUP);
    if (SignalWatch::received() != 0) ::_exit(1);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Signals, Watch_FirstSignal_NotesIt) {
  const int status = status_of_child([] {
    const SignalWatch watch;
    if (SignalWatch::received() != 0) ::_exit(1);
    std::raise(SIGTERM);
    if (SignalWatch::received() != SIGTERM) ::_exit(2);
    std::raise(SIGINT);  // counts as a copy within a second
    if (SignalWatch::received() != SIGTERM) ::_exit(3);
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Signals, Watch_SecondSignal_EndsTheProcessAndLeavesNoUnfinishedFile) {
  const Scratch scratch;
  const int status = status_of_child([&] {
    const SignalWatch watch;
    leave_unfinished_file(scratch);
    std::raise(SIGINT);
    ::usleep(1'100'000);
    std::raise(SIGINT);
  });
  expect_ended_by(status, SIGINT);
  EXPECT_EQ(scratch.count(), 0U);
}

TEST(Signals, Watch_FirstSignal_WritesItsAcknowledgementOnce) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int status = status_of_child([&] {
    ::dup2(ends[1], STDERR_FILENO);
    const SignalWatch watch("stopping");
    std::raise(SIGTERM);
    std::raise(SIGTERM);
  });
  ::close(ends[1]);
  std::string said(64, '\0');
  said.resize(static_cast<std::size_t>(::read(ends[0], said.data(), said.size())));
  ::close(ends[0]);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(said, "stopping\n");
}

/// Returns the wait status of a child on its own terminal, which gets `presses` Ctrl-C, each after the message about
/// the one before. Appends what it prints to `output`.
int status_on_terminal(int presses, const std::function<void()>& work, std::string& output) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    work();
    ::_exit(0);
  }
  char bytes[256];
  const auto read_some = [&] {
    const ssize_t got = ::read(terminal, bytes, sizeof(bytes));
    if (got > 0) output.append(bytes, static_cast<std::size_t>(got));
    return got > 0;
  };
  const auto read_until = [&](const char* word) {
    while (output.find(word) == std::string::npos && read_some()) {
    }
  };
  read_until("ready");
  for (int i = 0; i < presses; ++i) {
    EXPECT_EQ(::write(terminal, "\x03", 1), 1);
    read_until("stopping");  // two signals that are pending together would be one
  }
  while (read_some()) {
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  return status;
}

TEST(Signals, Watch_CtrlCTwiceWithinASecond_EndsTheProcess) {
  const auto work_for = [](int ticks) {  // after the first signal, each of 20 ms
    return [ticks] {
      const SignalWatch watch("stopping");
      [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, "ready\n", 6);
      for (int i = 0; i < 3000 && SignalWatch::received() == 0; ++i) ::usleep(20'000);
      if (SignalWatch::received() != SIGINT) ::_exit(1);
      for (int i = 0; i < ticks; ++i) ::usleep(20'000);
      ::_exit(7);
    };
  };
  std::string output;
  const int once = status_on_terminal(1, work_for(25), output);
  ASSERT_TRUE(WIFEXITED(once)) << once;
  EXPECT_EQ(WEXITSTATUS(once), 7);
  EXPECT_NE(output.find("\nstopping\r\n"), std::string::npos) << output;
  output.clear();
  expect_ended_by(status_on_terminal(2, work_for(3000), output), SIGINT);
}

TEST(Signals, Watch_Ended_RestoresTheHandlers) {
  const Scratch scratch;
  const int status = status_of_child([&] {
    remove_unfinished_files_on_signals();
    { const SignalWatch watch; }
    leave_unfinished_file(scratch);
    std::raise(SIGTERM);
  });
  expect_ended_by(status, SIGTERM);
  EXPECT_EQ(scratch.count(), 0U);
}

TEST(Signals, Process_OutputLost_Continues) {
  const int status = status_of_child([] {
    ::close(STDIN_FILENO);
    survive_lost_output();
    if (::fcntl(STDIN_FILENO, F_GETFD) < 0) ::_exit(1);
    std::raise(SIGPIPE);
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Signals, Process_FileTooLarge_Continues) {
  const int status = status_of_child([] {
    report_files_too_large();
    std::raise(SIGXFSZ);
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// Returns a mask of signals of a process, from the kernel: SigCgt those that it handles, SigIgn those that it ignores.
std::uint64_t signal_mask(pid_t process, const std::string& mask_name) {
  std::ifstream lines("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t mask = 0;
    if (words >> name >> std::hex >> mask && name == mask_name + ':') return mask;
  }
  return 0;
}

TEST(Signals, Tool_SignalAtItsStart_IsCaught) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const std::string tool = HEADGATE_TOOL;
  std::string arguments[] = {tool, "verify", "--seconds", "600"};
  char* const argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), arguments[3].data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, tool.c_str(), &actions, nullptr, argv, environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1) << "the verb prints when it has begun";
  const std::uint64_t caught = signal_mask(child, "SigCgt"), ignored = signal_mask(child, "SigIgn");
  ::kill(child, SIGTERM);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(ends[0]);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGXCPU}) {
    EXPECT_NE(caught >> (signal - 1) & 1U, 0U) << signal;
  }
  EXPECT_EQ(ignored >> (SIGPIPE - 1) & 1U, 0U) << "a verb whose reader has gone ends";
  EXPECT_NE(ignored >> (SIGXFSZ - 1) & 1U, 0U);
  expect_ended_by(status, SIGTERM);
}

}  // namespace
}  // namespace headgate::cli
