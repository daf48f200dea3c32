// SPDX-License-Identifier: Apache-2.0
#include "train/loop.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "io/file_error.hpp"
#include "train/run.hpp"

namespace headgate::train {
namespace {

using nlohmann::json;
using testing::SmallRun;
using Steps = std::vector<std::int64_t>;

class Recorder : public LoopObserver {
 public:
  explicit Recorder(std::int64_t interrupt_at = 0) : interrupt_at_(interrupt_at) {}

  void after_step(const Progress& progress) override {
    last_ = progress.step.step;
    if (progress.evaluation) evaluated.push_back(last_);
  }
  void saved(std::int64_t step) override { saves.push_back(step); }
  bool interrupted() override { return last_ == interrupt_at_; }

  Steps evaluated, saves;

 private:
  std::int64_t interrupt_at_;
  std::int64_t last_ = -1;
};

std::vector<json> records(const std::string& run) {
  std::vector<json> out;
  std::istringstream lines(testing::read_bytes(metrics_path(run)));
  for (std::string line; std::getline(lines, line);) out.push_back(json::parse(line));
  return out;
}

/// What two runs of the same bits share: all but times.
std::vector<json> timeless(std::vector<json> all) {
  for (json& record : all) {
    for (const char* key : {"seconds", "tokens_per_second", "mfu"}) record.erase(key);
  }
  return all;
}

LoopOptions in(const std::string& directory, std::int64_t stop_at = 0) {
  LoopOptions options;
  options.run = directory;
  options.stop_at = stop_at;
  return options;
}

TEST(Loop, SavesEvaluatesAndLogsOnTime) {
  SmallRun run;
  run.settings.schedule.steps = 10;
  run.settings.save_every = 4;
  run.settings.eval_every = 3;
  Trainer trainer = run.fresh();
  Recorder recorder;
  LoopOptions options = in(run.path("run"));
  options.fma_peak_gflops = 100.0;
  EXPECT_EQ(run_loop(trainer, recorder, options), LoopEnd::finished);
  EXPECT_EQ(recorder.saves, (Steps{0, 4, 8, 10}));
  EXPECT_EQ(recorder.evaluated, (Steps{3, 6, 9, 10}));
  const std::vector<json> log = records(run.path("run"));
  ASSERT_EQ(log.size(), 10U);
  for (std::size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i].at("step"), i + 1);
    for (const char* key : {"loss", "grad_norm", "lr", "tokens", "seconds", "tokens_per_second", "mfu"}) {
      EXPECT_TRUE(log[i].at(key).is_number()) << key;
    }
    EXPECT_DOUBLE_EQ(log[i].at("mfu").get<double>(),
                     trainer.flops_per_step() / log[i].at("seconds").get<double>() / 100e9);
    EXPECT_EQ(log[i].contains("eval"), (i + 1) % 3 == 0 || i + 1 == 10);
  }
  EXPECT_TRUE(log[2].at("eval").at("first_token_attention").is_number());
  EXPECT_EQ(log[2].at("eval").at("layers").size(), 2U);
}

TEST(Loop, AnInterruptedRunGoesOnBitForBit) {
  SmallRun run;
  run.settings.eval_every = 7;
  Trainer whole = run.fresh();
  Recorder quiet;
  run_loop(whole, quiet, in(run.path("whole")));

  Trainer first = run.fresh();
  Recorder interrupted(10);
  EXPECT_EQ(run_loop(first, interrupted, in(run.path("parts"))), LoopEnd::interrupted);
  EXPECT_EQ(interrupted.saves, (Steps{0, 10}));
  Trainer second = run.resumed(checkpoint_directory(run.path("parts")));
  Recorder rest;
  EXPECT_EQ(run_loop(second, rest, in(run.path("parts"))), LoopEnd::finished);
  EXPECT_EQ(rest.saves, (Steps{20}));

  for (const char* file : {"/model.safetensors", "/optimizer.safetensors", "/trainer_state.json", "/config.json"}) {
    EXPECT_EQ(testing::read_bytes(checkpoint_directory(run.path("parts")) + file),
              testing::read_bytes(checkpoint_directory(run.path("whole")) + file))
        << file;
  }
  EXPECT_EQ(timeless(records(run.path("parts"))), timeless(records(run.path("whole"))));
}

TEST(Loop, StepsAfterTheLastSaveAreTakenAgain) {
  SmallRun run;
  run.settings.save_every = 5;
  Trainer whole = run.fresh();
  Recorder quiet;
  run_loop(whole, quiet, in(run.path("run")));
  const std::vector<json> expected = timeless(records(run.path("run")));

  // As after SIGKILL at step 8: the checkpoint is that of step 5, the log goes on to step 8.
  Trainer killed = run.fresh();
  run_loop(killed, quiet, in(run.path("again"), 5));
  testing::write_bytes(metrics_path(run.path("again")),
                       testing::read_bytes(metrics_path(run.path("again"))) + "{\"step\":6}\n{\"step\":7}\n{\"st");
  Trainer second = run.resumed(checkpoint_directory(run.path("again")));
  run_loop(second, quiet, in(run.path("again")));
  EXPECT_EQ(timeless(records(run.path("again"))), expected);
}

TEST(Loop, StopsWhereItIsTold) {
  SmallRun run;
  Trainer trainer = run.fresh();
  Recorder recorder;
  EXPECT_EQ(run_loop(trainer, recorder, in(run.path("run"), 6)), LoopEnd::stopped);
  EXPECT_EQ(recorder.saves, (Steps{0, 6}));
  EXPECT_EQ(trainer.steps_done(), 6);
}

TEST(Loop, ADivergedRunKeepsItsLastGoodCheckpoint) {
  SmallRun run;
  Trainer start = run.fresh();
  Checkpoint checkpoint;
  start.save(run.path("start"));
  checkpoint = load_checkpoint(run.path("start"), CheckpointParts::all);
  TrainerState state = read_state(checkpoint.trainer_state);
  state.settings.schedule = {Decay::constant, 1e6, 0.1, 0, 20};  // far beyond what trains
  state.settings.save_every = 1;
  Trainer wild(std::move(checkpoint), state, run.source());
  Recorder recorder;
  EXPECT_THROW(run_loop(wild, recorder, in(run.path("run"))), Diverged);
  ASSERT_FALSE(recorder.saves.empty());
  const Checkpoint last = load_checkpoint(checkpoint_directory(run.path("run")), CheckpointParts::all);
  EXPECT_EQ(read_state(last.trainer_state).step, recorder.saves.back());
  EXPECT_EQ(records(run.path("run")).size(), static_cast<std::size_t>(wild.steps_done()));
}

TEST(Loop, SaysWhereItCannotWrite) {
  SmallRun run;
  Trainer trainer = run.fresh();
  Recorder recorder;
  EXPECT_THROW(run_loop(trainer, recorder, in("/nonexistent/run")), io::FileError);
  EXPECT_EQ(trainer.steps_done(), 0);
}

}  // namespace
}  // namespace headgate::train
