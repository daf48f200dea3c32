// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/tool.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "models/io/scratch.hpp"

namespace headgate::testing {

Outcome run_program(const std::vector<std::string>& command) {
  const Scratch scratch;
  const std::string out = scratch / "out";
  const std::string err = scratch / "err";
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_CREAT | O_WRONLY, 0600);
  ::posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_CREAT | O_WRONLY, 0600);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failure = ::posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw std::runtime_error("cannot run " + command[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, read_bytes(out), read_bytes(err)};
}

std::string headgate_path() { return HEADGATE_TOOL; }

Outcome headgate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), headgate_path());
  return run_program(arguments);
}

void expect_refused(const Outcome& outcome, const std::string& verb, const std::string& reason) {
  const std::string who = verb.empty() ? "headgate: " : "headgate " + verb + ": ";
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(outcome.err.starts_with(who)) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with('\n')) << outcome.err;
  EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err << "should say: " << reason;
}

}  // namespace headgate::testing
