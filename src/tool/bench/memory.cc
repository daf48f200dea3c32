// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

#include "tool/bench/cases.hpp"
#include "tool/bench/timing.hpp"
#include "tool/bench/workload.hpp"

namespace headgate::bench {
namespace {

double peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    double kib = 0.0;
    if (std::sscanf(line.c_str(), "VmHWM: %lf kB", &kib) == 1) return kib * 1024.0;
  }
  throw std::runtime_error("memory case: /proc/self/status has no VmHWM");
}

/// Returns the path of the running program's file.
std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) throw std::runtime_error("memory case: cannot read /proc/self/exe");
  return std::string(path.data(), length);
}

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 256> part{};
  for (;;) {
    const ssize_t n = read(descriptor, part.data(), part.size());
    if (n > 0) text.append(part.data(), n);
    if (n == 0 || (n < 0 && errno != EINTR)) return text;
  }
}

/// Runs this program with `arguments` in a child process and returns what the child prints to stdout.
std::string run_self(std::array<std::string, 4> arguments) {
  const std::string path = own_path();
  std::string name = "headgate";
  std::array<char*, 6> argv{name.data(), nullptr};
  for (std::size_t i = 0; i < arguments.size(); ++i) argv[i + 1] = arguments[i].data();

  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("memory case: cannot create a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int spawned = posix_spawn(&child, path.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text = spawned == 0 ? read_all(ends[0]) : "";
  close(ends[0]);
  if (spawned != 0) throw std::runtime_error("memory case: cannot start " + path);

  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error("memory case: cannot wait for the child process");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error("memory case: the child process failed");
  }
  return text;
}

}  // namespace

MemoryResult measure_memory(int threads) {
  const std::string line = run_self({"bench", "--memory-probe", "--threads", std::to_string(threads)});
  MemoryResult result;
  if (std::sscanf(line.c_str(), "%lf %lf %lf", &result.peak_bytes, &result.forward_seconds, &result.backward_seconds) !=
      3) {
    throw std::runtime_error("memory case: the child process printed no result");
  }
  return result;
}

void run_memory_probe(int threads) {
  verify::CaseSpec spec = memory_spec();
  spec.threads = threads;
  std::optional<Workload> workload;
  const double forward_seconds =
      seconds_of([&] { workload.emplace(spec, BenchOp::backward); });  // the constructor runs the forward call
  const double backward_seconds = seconds_of([&] { workload->backward(); });
  fmt::print("{:.0f} {:.6f} {:.6f}\n", peak_resident_bytes(), forward_seconds, backward_seconds);
}

}  // namespace headgate::bench
