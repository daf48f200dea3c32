// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>

#include "models/io/scratch.hpp"
#include "models/io/staged_directory.hpp"
#include "models/train/saved_checkpoint.hpp"

namespace headgate::train {
namespace {

using headgate::testing::read_bytes;
using headgate::testing::SavedCheckpoint;
using headgate::testing::Scratch;
using headgate::testing::small_config;
using headgate::testing::write_bytes;

/// Runs a child that saves generations first, first + 1, … until it is killed, and reports each save that has returned.
class Saver {
 public:
  Saver(int first, const std::function<void(int)>& save) : last_(first - 1) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    child_ = ::fork();
    if (child_ == 0) run(first, save, ends[1]);
    ::close(ends[1]);
    pipe_ = ends[0];
    wait_for_report();  // the child has started
  }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  ~Saver() { ::close(pipe_); }

  /// Waits for the next save to return; returns false when the child has ended.
  bool wait_for_report() {
    int generation = 0;
    if (::read(pipe_, &generation, sizeof(generation)) != sizeof(generation)) return false;
    last_ = generation;
    return true;
  }

  /// Returns the last generation whose save has returned, first − 1 if none has.
  int kill() {
    ::kill(child_, SIGKILL);
    int status = 0;
    ::waitpid(child_, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;
    while (wait_for_report()) {
    }
    return last_;
  }

 private:
  [[noreturn]] static void run(int first, const std::function<void(int)>& save, int pipe) {
    const auto report = [pipe](int generation) {
      if (::write(pipe, &generation, sizeof(generation)) != sizeof(generation)) ::_exit(2);
    };
    report(first - 1);
    for (int generation = first;; ++generation) {
      try {
        save(generation);
      } catch (...) {
        ::_exit(1);
      }
      report(generation);
    }
  }

  pid_t child_ = -1;
  int pipe_ = -1;
  int last_;
};

/// Kills saving children many times, at any moment of a save or two. What is loaded must always be the last whole
/// generation.
void kill_many_times(int kills, const std::function<void(int)>& save, const std::function<int()>& load) {
  using Clock = std::chrono::steady_clock;
  std::mt19937 random(20260101);  // NOLINT: the same shares of a save in every run
  save(1);
  const auto begin = Clock::now();
  save(2);
  const auto one_save = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count() + 1;
  int present = 2;
  for (int i = 0; i < kills && !::testing::Test::HasFailure(); ++i) {
    Saver saver(present + 1, save);
    if (i % 4 == 0) saver.wait_for_report();
    ::usleep(static_cast<useconds_t>(std::min<std::int64_t>(random() % (2 * one_save), 100000)));
    const int returned = saver.kill();
    const int loaded = load();
    // The next generation may be in place before its save returned.
    EXPECT_TRUE(loaded == returned || loaded == returned + 1) << loaded << " after " << returned;
    present = loaded;
  }
  EXPECT_GE(present, 2 + kills / 4);
}

TEST(CheckpointKill, Process_KilledWhileSaving_LeavesTheLastWholeCheckpoint) {
  const Scratch scratch;
  const std::string directory = scratch / "checkpoint";
  SavedCheckpoint model(small_config());
  const auto save = [&](int generation) {
    model.fill(static_cast<float>(generation));
    save_checkpoint(directory, model.view());
  };
  const auto load = [&] {
    const Checkpoint found = load_checkpoint(directory, CheckpointParts::all);
    const float generation = found.parameters.at(0);
    for (const auto* buffer : {&found.parameters, &found.first_moment, &found.second_moment}) {
      EXPECT_EQ(std::count(buffer->begin(), buffer->end(), generation), model.table.total());
    }
    EXPECT_EQ(found.trainer_state, std::to_string(generation));
    return static_cast<int>(generation);
  };
  kill_many_times(100, save, load);
  save(1);
  EXPECT_EQ(scratch.count(), 1U) << "something of the killed is left after a save";
}

TEST(CheckpointKill, Process_KilledBetweenTwoRenames_LeavesTheLastWholeDirectory) {
  const Scratch scratch;
  const std::string directory = scratch / "checkpoint";
  const auto save = [&](int generation) {
    io::StagedDirectory staged(directory, {"a", "b"});
    write_bytes(staged.path() + "/a", std::to_string(generation));
    write_bytes(staged.path() + "/b", std::to_string(generation));
    staged.commit(io::Replacing::two_renames);
  };
  const auto load = [&] {
    const std::string from = io::present_directory(directory);
    const std::string a = read_bytes(from + "/a");
    EXPECT_EQ(a, read_bytes(from + "/b"));
    return a.empty() ? 0 : std::stoi(a);
  };
  kill_many_times(100, save, load);
  save(1);
  EXPECT_EQ(scratch.count(), 1U) << "something of the killed is left after a save";
}

}  // namespace
}  // namespace headgate::train
